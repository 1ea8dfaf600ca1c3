"""Formats the result of `plimsoll measure` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.engine.gpus.card_files import FOLDER_VARIABLE, cards_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from plimsoll.engine.gpus.card_files import CardFile

_CLOSE = 0.02
"""A measured size counts as equal to its simulated size if they differ by at most this fraction."""
_MOST_SHOWN = 5


def _use(path: Path) -> str:
    if path.parent == cards_folder():
        return f"predictions for it use {path} from now on"
    return f"predictions for it use {path} in the folder that {FOLDER_VARIABLE} names"


def measured_text(found: CardFile, path: Path, notes: Sequence[str], seconds: float) -> str:
    """Returns the text to print; its first line is the answer."""
    card = found.card
    lines = [
        f"{found.name} is measured, in {seconds:.0f} s: {_use(path)}",
        f"  memory        {format_size(card['total_bytes'])}",
        f"  context       {format_size(card['context_bytes'])} in training",
        f"  bandwidth     {found.rates['copy_bytes_per_s'] / 1e9:,.0f} GB/s, copying",
        f"  products      {found.rates['tensor_flops'] / 1e12:,.0f} TFLOPS in half precision, "
        f"{found.rates['fp32_flops'] / 1e12:,.1f} in single precision",
        f"  launches      {found.rates['launches_per_s']:,.0f} a second",
        f"  NCCL          {format_size(card['nccl_process_bytes'])} in each process",
        f"  convolutions  {len(found.convolutions)}, {len(found.searches)} with cudnn.benchmark",
    ]
    lines += [f"  not known     {note}" for note in notes]
    off = {
        words: pair
        for words, pair in found.checks.items()
        if abs(pair[0] - pair[1]) > _CLOSE * max(pair)
    }
    lines.append(
        f"  checks        {len(found.checks) - len(off)} of {len(found.checks)} are as predicted"
    )
    for words, (measured, foreseen) in list(off.items())[:_MOST_SHOWN]:
        lines.append(f"    {words}: {format_size(measured)}, predicted {format_size(foreseen)}")
    return "\n".join(lines)
