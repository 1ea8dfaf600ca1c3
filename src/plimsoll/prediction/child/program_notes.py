"""Collects facts that explain a program's memory use but do not show in its memory requests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.child.script_ending import line_of_stack
from plimsoll.recordings.causes.cause import MathAttention, Notes
from plimsoll.torch.simulated.library import MATH_ATTENTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.torch.simulated.simulation import Simulation


_PINNED_THRESHOLD = (2, 13)


def notes_of(simulation: Simulation, devices: dict[int, int]) -> Notes:
    """Returns what the simulated GPUs noted, and facts about the state of PyTorch itself.

    Args:
        simulation: The GPUs.
        devices: The peaks of allocated memory by device, in bytes.
    """
    torch: Any = sys.modules.get("torch")
    pinned = simulation.library.pinned_statistics()
    return Notes(
        math_attention=list(_math_attention(simulation)),
        pinned_asked_bytes=pinned.asked_bytes.peak,
        pinned_taken_bytes=pinned.active_bytes.peak,
        has_pinned_threshold=simulation.version >= _PINNED_THRESHOLD,
        searches=torch is not None and bool(torch.backends.cudnn.benchmark),
        devices=devices,
    )


def _math_attention(simulation: Simulation) -> Iterator[MathAttention]:
    for noted in simulation.library.assumptions():
        what = simulation.library.name(noted.what)
        if what.startswith(MATH_ATTENTION):
            line = line_of_stack(noted.stack) if noted.stack else None
            yield MathAttention(what.removeprefix(MATH_ATTENTION), line, noted.bytes)
