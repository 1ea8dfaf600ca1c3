"""Finds the blocks that a rank's steps allocate and never free, by source line.

After the first step, each step of a healthy rank leaves no blocks behind, or the same blocks as on
all other ranks. So a comparison of ranks shows the leak of one rank after a few steps.
`recordings.analysis.leaks`, which sees one rank only, needs a trend over many steps.
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
"""A recording with fewer steps than this is not examined.

In any other recording, the first step (warm-up) and an unfinished last step are skipped.
"""
_MOST_NAMED = 20


@dataclass(frozen=True)
class Kept:
    """The memory that one source line allocates in steps and never frees.

    Attributes:
        line: "file:line function", or without call stacks "blocks of SIZE".
        bytes: The bytes kept over the examined steps.
        steps: The number of examined steps in which the line kept memory.
        of_steps: The number of examined steps.
        slope_bytes: The mean bytes kept per examined step.
    """

    line: str
    bytes: int
    steps: int
    of_steps: int
    slope_bytes: float


def find_kept(
    lifetimes: Lifetimes, steps: Steps, group: NDArray[np.int64], names: Sequence[str]
) -> list[Kept]:
    """Returns the memory that each line keeps, largest first; empty with too few steps.

    Args:
        lifetimes: The blocks. Blocks that are freed before the `kept_moment` may be left out.
        steps: The program's steps.
        group: The source line of each block, as an index into `names`.
        names: The source lines.
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
    """Returns the last event of the examined steps, after which all kept blocks are live."""
    return int(steps.boundaries[_steps_looked_at(steps)]) - 1


def _steps_looked_at(steps: Steps) -> int:
    # If steps are detected from the rhythm of allocations, the end of the last step is a guess. So
    # that step is skipped.
    return len(steps) - 1 if steps.source == "rhythm" else len(steps)
