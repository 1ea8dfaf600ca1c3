"""Whether a program takes more with every step, as one that keeps what it should not does."""

from __future__ import annotations

from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = 8
"""So many steps in a row have to grow: caches fill and allocators learn in fewer."""
_MOST_UNEVEN = 2


def growth_bytes(step_peaks_bytes: Sequence[int]) -> int | None:
    """What each of the last `STEPS` steps took more than the one before, about.

    Args:
        step_peaks_bytes: The peak of each step.

    Returns:
        None if they did not all grow, or not evenly: a step twice as much as another.
    """
    grown = [after - before for before, after in pairwise(step_peaks_bytes[-STEPS - 1 :])]
    if len(grown) < STEPS or min(grown) <= 0 or max(grown) > _MOST_UNEVEN * min(grown):
        return None
    return median_low(grown)
