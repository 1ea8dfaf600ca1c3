"""Recognises a card that is full because of memory outside PyTorch's allocator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import GiB, KiB, MiB, format_size
from plimsoll.recordings.causes.cause import LEAST_SHARE, Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_UNITS = {"bytes": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB}
_OWN = re.compile(rf"this process has {_SIZE} memory in use")


@dataclass(frozen=True)
class CardParts:
    """How many bytes of a card's memory each holder has, when a program does not fit on the card.

    Attributes:
        total_bytes: The whole card.
        pytorch_bytes: The memory that PyTorch's allocator needs in all.
        context_bytes: The CUDA context of this process; 0 if unknown.
        nccl_bytes: NCCL's buffers in this process.
        libraries_bytes: The rest of this process's memory: other libraries.
        processes_bytes: The program's other processes.
        others_bytes: Other programs.
        rest_bytes: Memory in use whose holder is unknown.
    """

    total_bytes: int
    pytorch_bytes: int
    context_bytes: int
    nccl_bytes: int = 0
    libraries_bytes: int = 0
    processes_bytes: int = 0
    others_bytes: int = 0
    rest_bytes: int = 0


def own_bytes(error: str) -> int | None:
    """Returns the memory of this process on the card, from the text of PyTorch's error.

    PyTorch rounds the size to two decimals. The result is the largest size with this rounding.
    """
    found = _OWN.search(error)
    return None if found is None else round((float(found[1]) + 0.005) * _UNITS[found[2]])


def outside_pytorch(card: CardParts) -> Cause | None:
    """Finds memory outside PyTorch, if the card has room for the CUDA context and PyTorch's memory.

    The memory outside PyTorch must be at least 2 % of the card. The CUDA context does not count,
    because it is always there.
    """
    holders = list(_holders(card))
    outside = sum(size for size, _, _ in holders)
    if outside < LEAST_SHARE * card.total_bytes:
        return None
    if card.pytorch_bytes + card.context_bytes > card.total_bytes:
        return None
    _, _, change = max(holders)
    known = [(card.context_bytes, "CUDA's context", "")] if card.context_bytes else []
    named = " and ".join(f"{format_size(size)} by {who}" for size, who, _ in [*holders, *known])
    return Cause(
        name="outside_pytorch",
        sentence=f"the card has room for PyTorch's {format_size(card.pytorch_bytes)}, but "
        f"{format_size(outside + card.context_bytes)} is held outside PyTorch: {named}",
        change=change,
        bytes=outside,
    )


def with_outside(causes: Iterable[Cause], card: CardParts) -> list[Cause]:
    """Adds the cause for memory outside PyTorch, after the causes whose memory grows.

    If ranks share a card, the cause "ranks_on_one_card" says the same, and nothing is added.
    """
    found = list(causes)
    cause = outside_pytorch(card)
    if cause is None or any(each.name == "ranks_on_one_card" for each in found):
        return found
    return sorted([cause, *found], key=lambda each: not each.growth_bytes)


def _holders(card: CardParts) -> Iterator[tuple[int, str, str]]:
    """Yields each holder outside PyTorch: its bytes, its name, and the advice."""
    for size, who, change in (
        (card.nccl_bytes, "NCCL", "make fewer process groups: each connects buffers of NCCL's"),
        (
            card.libraries_bytes,
            "other libraries of this process",
            "limit the memory of the libraries that do not use PyTorch's allocator",
        ),
        (
            card.processes_bytes,
            "other processes of the program",
            "give each process that uses a GPU a card of its own",
        ),
        (
            card.others_bytes,
            "other programs",
            "end the other programs on the card, which nvidia-smi lists",
        ),
        (
            card.rest_bytes,
            "other processes and libraries",
            "see in nvidia-smi which processes hold it, and end those that are not needed",
        ),
    ):
        if size > 0:
            yield size, who, change
