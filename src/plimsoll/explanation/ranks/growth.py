"""What a rank keeps: blocks that a step leaves behind for good, by source line.

A leak of one rank shows beside the others before it would by itself: what a healthy rank leaves
behind after its first step is nothing, or the same in all of them. So a few steps are enough here,
where `recordings.analysis.leaks` asks for a trend over many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps

LEAST_STEPS = 4
"""The first step is left out, as programs warm up, and the last, which is still at work."""
_MOST_NAMED = 20


@dataclass(frozen=True)
class Kept:
    """What one line keeps.

    Attributes:
        line: "file:line function", or without call stacks "blocks of SIZE".
        bytes: All that it has kept over the steps that are looked at.
        steps: In how many of these it kept something.
        of_steps: How many are looked at.
        slope_bytes: What that comes to for each step.
    """

    line: str
    bytes: int
    steps: int
    of_steps: int
    slope_bytes: float


def find_kept(
    lifetimes: Lifetimes, steps: Steps, group: NDArray[np.int64], names: Sequence[str]
) -> list[Kept]:
    """What lines keep after steps, the most first; nothing where there are too few steps.

    Args:
        lifetimes: The blocks, at least all that are live at the `kept_moment`.
        steps: The program's steps.
        group: Of each block, the number of its line.
        names: The lines by number.
    """
    if len(steps) < LEAST_STEPS:
        return []
    bounds = steps.boundaries
    looked_at = _steps_looked_at(steps)
    step = np.searchsorted(bounds, lifetimes.start, side="right") - 1
    is_kept = (step >= 1) & (step < looked_at) & (lifetimes.end >= bounds[looked_at])
    blocks = np.flatnonzero(is_kept)
    if len(blocks) == 0:
        return []
    numbers, place = np.unique(group[blocks], return_inverse=True)
    held = np.bincount(place, lifetimes.size[blocks].astype(np.float64))
    pairs = np.unique(place * np.int64(len(steps)) + step[blocks])
    in_steps = np.bincount(pairs // len(steps), minlength=len(numbers))
    found = [
        Kept(
            names[int(number)], int(size), int(count), looked_at - 1, float(size) / (looked_at - 1)
        )
        for number, size, count in zip(numbers, held, in_steps, strict=True)
    ]
    return sorted(found, key=lambda one: -one.bytes)[:_MOST_NAMED]


def kept_moment(steps: Steps) -> int:
    """The event after which all is live that steps have kept."""
    return int(steps.boundaries[_steps_looked_at(steps)]) - 1


def _steps_looked_at(steps: Steps) -> int:
    # The end of the last step is a guess, where steps were found.
    return len(steps) - 1 if steps.source == "rhythm" else len(steps)
