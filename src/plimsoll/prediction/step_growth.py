"""Detects from the peaks of a program's steps whether memory grows with every step."""

from __future__ import annotations

from itertools import accumulate, pairwise
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = 8
"""The number of consecutive steps in which memory must grow to count as growing with every step.

A cache also grows at first, but is full after fewer steps.
"""
_MOST_UNEVEN = 2
_FEWEST_STEPS = 4
"""The fewest steps for a result: the first is unusual, and the last may have a short batch."""
_AT_LEAST, _LEAST_SHARE = 2, 1 / 8
"""How many steps, and which share of them, must reach the largest peak in `steady_from`.

To accept a step, `steady_from` looks at this step and all later steps. At least two of these steps,
and at least an eighth of them, must reach the largest peak among them. If the step is in the second
half of the program, at least `STEPS` of them must.
"""
_ROUNDING = 1e-3
"""Peaks whose relative difference is less than this count as equal.

Predictions have errors of that size; see docs/predict.md.
"""


def growth_bytes(step_peaks_bytes: Sequence[int]) -> int | None:
    """Returns the approximate growth per step over the last `STEPS` steps.

    Args:
        step_peaks_bytes: The peak of each step.

    Returns:
        Bytes per step. None if there are too few steps, if memory did not grow in a step, or if it
        grew more than twice as much in one step as in another.
    """
    grown = [after - before for before, after in pairwise(step_peaks_bytes[-STEPS - 1 :])]
    if len(grown) < STEPS or min(grown) <= 0 or max(grown) > _MOST_UNEVEN * min(grown):
        return None
    return median_low(grown)


def steady_from(step_peaks_bytes: Sequence[int]) -> int | None:
    """Returns the first step with a peak that later steps reach repeatedly but never exceed.

    Some later steps may take less, for example with a short last batch or another optimizer.

    Args:
        step_peaks_bytes: The peak of each step.

    Returns:
        The step's number, counted from 1; 0 if there are too few steps. None if peaks still change
        at the end, so that further steps may take more.
    """
    most = list(accumulate(reversed(step_peaks_bytes), max))[::-1]
    if growth_bytes(step_peaks_bytes) is not None:
        return None
    for step, largest in enumerate(most):
        if not _are_alike(step_peaks_bytes[step], largest):
            continue
        rest = step_peaks_bytes[step:]
        at_least = _AT_LEAST if step <= len(most) // 2 else STEPS
        reached = sum(_are_alike(peak, largest) for peak in rest)
        if reached >= max(at_least, len(rest) * _LEAST_SHARE):
            return step + 1
    return 0 if len(most) < _FEWEST_STEPS else None


def _are_alike(peak: int, most: int) -> bool:
    return most - peak <= _ROUNDING * most
