"""Finds live memory that grows from step to step.

At each boundary between steps, the live bytes of every group of blocks form a series. A leak is a
series with a trend. The Mann-Kendall test gives the trend's confidence. The Theil-Sen estimator
gives the trend's slope. The test uses ranks and the estimator uses medians, so a few unusual steps
do not matter. Memory is no leak if it grows only during warm-up, if its growth stops, or if it is
freed from time to time.

One line can request memory for several callers, as the line of a model does for training and for
an evaluation. Only the call stacks whose own series have a trend count as the line's leak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps

LEAST_STEPS = 8  # fewer steps may show growth by chance
_LEAST_CONFIDENCE = 0.99
_MOST_MOMENTS = 200  # few enough to compare all pairs of moments
_MOST_GIVEN_BACK = 0.1  # a leak's live bytes fall by at most this share of its growth
_MOST_UNEVEN = 2  # a leak grows by at most this many times its slope times the steps
_LEAST_IN_LATER_HALF = 0.5  # in its later half, a leak has at least this share of its slope


@dataclass(frozen=True)
class Leak:
    """Live memory that grows from step to step.

    Attributes:
        what: The source line; for blocks without stacks, their size.
        slope_bytes: The growth per step, by the Theil-Sen estimator.
        confidence: The Mann-Kendall test's confidence: one minus the probability that chance alone
            gives as much growth.
        grown_bytes: The growth from the first examined step to the last.
        blocks: The growth in the number of blocks.
        last_event: The last event that allocated a block of this line or size.
        inside_step: The number of the marked step that contains a loop, such as a validation, if
            the memory grows with each pass of this loop. "Step" in the other attributes then means
            a pass. None if the memory grows from step to step.
    """

    what: str
    slope_bytes: float
    confidence: float
    grown_bytes: int
    blocks: int
    last_event: int
    inside_step: int | None = None

    @property
    def each_time(self) -> str:
        """How often the memory grows by `slope_bytes`, in words."""
        inside = self.inside_step
        return "each step" if inside is None else f"with each pass of a loop in step {inside}"


def find_leaks(
    lifetimes: Lifetimes, steps: Steps, group: NDArray[np.int64], names: Sequence[str]
) -> list[Leak]:
    """Finds the groups of blocks whose live bytes grow from step to step.

    Args:
        lifetimes: The blocks. Blocks that are live at none of the `leak_moments` may be missing.
        steps: The program's steps.
        group: For each block, the number of its group, such as its source line.
        names: The names of the groups.
    """
    if len(steps) < LEAST_STEPS:
        return []
    number, moments = leak_moments(steps)
    # Only blocks that are live at one of these moments count.
    begin = np.searchsorted(moments, lifetimes.start)
    end = np.searchsorted(moments, lifetimes.end)
    blocks = np.flatnonzero(end > begin)
    if len(blocks) == 0:
        return []
    groups, place = np.unique(group[blocks], return_inverse=True)
    found = []
    by_group = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))
    for row in _rows_that_rise(lifetimes, blocks, place, moments):
        mine = blocks[by_group[ends[row - 1] if row else 0 : ends[row]]]
        part = _growing_part(lifetimes, mine, number, moments)
        grown = _growth(lifetimes, mine if part is None else part, number, moments)
        if grown is None:
            continue
        slope, confidence, grown_bytes, grown_blocks = grown
        found.append(
            Leak(
                what=names[int(groups[row])],
                slope_bytes=slope,
                confidence=confidence,
                grown_bytes=grown_bytes,
                blocks=grown_blocks,
                last_event=int(lifetimes.start[mine if part is None else part].max()),
            )
        )
    return sorted(found, key=lambda leak: -leak.slope_bytes)


def leak_moments(steps: Steps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chooses the boundaries between steps at which `find_leaks` compares live memory.

    Returns the numbers of these boundaries, counted from the end of the warm-up, which is 0. Also
    returns the last event before each of them.
    """
    # If the steps were detected, the last boundary is a guess and is left out.
    last = len(steps) + (steps.source == "marks")
    moments = steps.boundaries[steps_to_warm_up(steps) : last] - 1
    spread = np.linspace(0, len(moments) - 1, min(len(moments), _MOST_MOMENTS))
    number = spread.round().astype(np.int64)
    return number, moments[number]


def steps_to_warm_up(steps: Steps) -> int:
    """Returns the number of steps to ignore at the start.

    While a program warms up, its memory grows even without a leak.
    """
    return max(2, len(steps) // 10)


def growing_stacks(lifetimes: Lifetimes, steps: Steps) -> NDArray[np.uint32]:
    """Returns the call stacks whose live bytes grow from step to step.

    Returns all stacks if none grows by itself.

    Args:
        lifetimes: The blocks of a growing line.
        steps: The program's steps.
    """
    number, moments = leak_moments(steps)
    whole = np.arange(len(lifetimes))
    part = _growing_part(lifetimes, whole, number, moments)
    return np.unique(lifetimes.stack[whole if part is None else part])


def _rows_that_rise(
    lifetimes: Lifetimes,
    blocks: NDArray[np.int64],
    place: NDArray[np.int64],
    moments: NDArray[np.int64],
) -> list[int]:
    """Returns the numbers in `place` of the groups with more live bytes at the end than at first.

    Args:
        lifetimes: All blocks.
        blocks: The indices of the blocks that count.
        place: For each of these blocks, the number of its group.
        moments: The events at which live memory is compared.
    """
    edges = moments[[0, -1]]
    is_live = [(lifetimes.start[blocks] <= at) & (lifetimes.end[blocks] > at) for at in edges]
    sizes = lifetimes.size[blocks].astype(np.int64)
    first, last = (np.bincount(place, sizes * live) for live in is_live)
    rising: list[int] = np.flatnonzero(last > first).tolist()
    return rising


def _growing_part(
    lifetimes: Lifetimes,
    blocks: NDArray[np.int64],
    number: NDArray[np.int64],
    moments: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Returns the blocks of the call stacks that grow by themselves; None if no stack does.

    Returns None too if the other stacks shrink: one stack's blocks then replace those of another.

    Args:
        lifetimes: All blocks.
        blocks: The indices of the blocks of one line.
        number: The numbers of the compared steps.
        moments: The last events of these steps.
    """
    stacks, place = np.unique(lifetimes.stack[blocks], return_inverse=True)
    if len(stacks) <= 1:
        return None
    levels = _levels_of(lifetimes, blocks, moments, place, amount=lifetimes.size[blocks])
    rise = levels[:, -1] - levels[:, 0]
    grows = np.array(
        [rise[row] > 0 and _trend(number, levels[row]) is not None for row in range(len(stacks))]
    )
    if not grows.any() or rise.sum() < (1 - _MOST_GIVEN_BACK) * rise[grows].sum():
        return None
    part: NDArray[np.int64] = blocks[grows[place]]
    return part


def _growth(
    lifetimes: Lifetimes,
    blocks: NDArray[np.int64],
    number: NDArray[np.int64],
    moments: NDArray[np.int64],
) -> tuple[float, float, int, int] | None:
    """Returns the slope, its confidence, and the grown bytes and blocks; None without a trend.

    If memory also jumped once, only the steady growth counts: the slope times the steps.

    Args:
        lifetimes: All blocks.
        blocks: The indices of the blocks that count.
        number: The numbers of the compared steps.
        moments: The last events of these steps.
    """
    one = np.zeros(len(blocks), dtype=np.int64)
    (level,) = _levels_of(lifetimes, blocks, moments, one, amount=lifetimes.size[blocks])
    trend = _trend(number, level) if level[-1] > level[0] else None
    if trend is None:
        return None
    (count,) = _levels_of(lifetimes, blocks, moments, one, amount=one + 1)
    grown, more = int(level[-1] - level[0]), int(count[-1] - count[0])
    steady = trend[0] * int(number[-1] - number[0])
    if grown > _MOST_UNEVEN * steady:
        return *trend, round(steady), round(theil_sen(number, count) * int(number[-1] - number[0]))
    return *trend, grown, more


def _levels_of(
    lifetimes: Lifetimes,
    blocks: NDArray[np.int64],
    moments: NDArray[np.int64],
    place: NDArray[np.int64],
    *,
    amount: NDArray[np.int64] | NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Returns the live amount (bytes or blocks) of each group in `place` at each moment."""
    begin = np.searchsorted(moments, lifetimes.start[blocks])
    end = np.searchsorted(moments, lifetimes.end[blocks])
    amounts = amount.astype(np.int64)
    return _levels(place, begin, end, amounts, int(place.max()) + 1, len(moments))


def _levels(
    place: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    amount: NDArray[np.int64],
    groups: int,
    moments: int,
) -> NDArray[np.int64]:
    """Returns the live amount (bytes or blocks) of each group at each moment."""
    width = moments + 1
    change = np.bincount(place * width + begin, amount, groups * width)
    change -= np.bincount(place * width + end, amount, groups * width)
    return np.cumsum(change.reshape(groups, width), axis=1)[:, :moments].astype(np.int64)


def _trend(time: NDArray[np.int64], level: NDArray[np.int64]) -> tuple[float, float] | None:
    """Returns the slope and confidence of a series if it grows like a leak, or None."""
    grown = int(level[-1] - level[0])
    given_back = int((np.maximum.accumulate(level) - level).max())
    if given_back > _MOST_GIVEN_BACK * grown:
        return None
    slope = theil_sen(time, level)
    later = len(time) // 2
    if slope <= 0 or theil_sen(time[later:], level[later:]) < _LEAST_IN_LATER_HALF * slope:
        return None
    confidence = mann_kendall(level)
    return (slope, confidence) if confidence >= _LEAST_CONFIDENCE else None


def theil_sen(time: NDArray[np.int64], level: NDArray[np.int64]) -> float:
    """Returns the Theil-Sen slope: the median of the slopes between all pairs of points."""
    one, other = np.triu_indices(len(time), 1)
    return float(np.median((level[other] - level[one]) / (time[other] - time[one])))


def mann_kendall(level: NDArray[np.int64]) -> float:
    """Returns the Mann-Kendall test's confidence that a series grows.

    The confidence is 1 minus the probability that chance alone gives as much growth. The test is
    one-sided and uses the normal approximation with the correction for ties. For up to 8 points it
    reports less confidence than the exact test.
    """
    count = len(level)
    one, other = np.triu_indices(count, 1)
    score = int(np.sign(level[other] - level[one]).sum())
    _, ties = np.unique(level, return_counts=True)
    variance = (
        count * (count - 1) * (2 * count + 5) - int((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18
    if variance <= 0 or score <= 0:
        return 0.0
    return 0.5 * (1 + math.erf((score - 1) / math.sqrt(2 * variance)))
