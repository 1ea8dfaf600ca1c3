"""Chooses the values to try in the search for the largest value with which a script fits.

This largest value is called the answer. The search uses earlier results, and goes on until two
tried values enclose the answer. A known value is one whose use of memory a run has measured.
A scout is a run with unlimited memory, which only measures how much memory a value takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.estimates import crossing

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_RUNS = 8
"""The most runs of a search, unless the caller asks for the exact answer."""
_TOLERANCE = 100  # the search ends when the answer is known to one part in 100
# While `high` is None, a round tries at most the largest known value times this factor.
_MOST_GROWTH = 32
# If a value and this many times that value take the same memory, the search assumes that the
# memory does not depend on the value.
_PATIENCE = 1024
# An estimate needs no scout if it lies within one of these factors of a known value: the first
# factor if there is one known value, the second if there are two, the third if there are more.
_NEAR = (1.1, 2.0, 2.5)
_CLOSE = 1.1  # within this factor of a known value no scout is needed, even after wrong estimates
# If no known value is near the estimate, the last round tries this safe part of the estimate.
_SURE = 0.95
_GROWTH = 4  # the first scout's value is this many times the value that the first try uses
# The search rounds each value to a multiple of a unit. For a scout, the unit is at most 1/2 of the
# value. For any other try, it is at most 1/4 of the tolerance. It is never smaller than `step`.
_LEEWAY, _SCOUTS_LEEWAY = 4, 2
_MOST_SCOUTS = 4
# For each factor of two between an estimate and the nearest known value, the estimate may be wrong
# by this share.
_DOUBT = 0.01


@dataclass(frozen=True)
class Try:
    """A value to try.

    Attributes:
        value: The value.
        scouts: Whether the script runs with unlimited memory, only to measure how much it takes.
    """

    value: int
    scouts: bool = False


@dataclass(frozen=True)
class Point:
    """The result of one value.

    Attributes:
        value: The value.
        fits: Whether the script fits for certain and leaves the wanted headroom; None if the script
            ran with unlimited memory, and the run does not show that it fits.
        spare_bytes: The memory left over for certain, negative if memory may be missing; None if
            the script ran out of memory, or the run does not show what is missing.
        varying_bytes: The part of the script's memory that may depend on the value.
        requested_bytes: The requested bytes at the peak, without rounding. Rounding would hide how
            little memory grows between small values.
        is_scout: Whether the script ran with unlimited memory.
    """

    value: int
    fits: bool | None
    spare_bytes: int | None = None
    varying_bytes: int = 0
    requested_bytes: int = 0
    is_scout: bool = False


class Bracket:
    """The results of a search so far, and the choice of the next values to try.

    Attributes:
        step: The search tries only multiples of this number.
        points: The results so far.
        at_most: The largest value that may be tried; None for no bound.
        broken: Values with which the script fails for another reason than memory.
        other_runs: The number of runs that gave no result for any value.
    """

    def __init__(
        self, *, step: int = 1, at_most: int | None = None, is_exact: bool = False
    ) -> None:
        self.step = step
        self.points: list[Point] = []
        self.broken: set[int] = set()
        self.other_runs = 0
        self.at_most = at_most
        self._is_exact = is_exact

    @property
    def low(self) -> int:
        """The largest tried value that fits for certain; 0 if none does."""
        fitting = (each.value for each in self.points if each.fits)
        return max((value for value in fitting if value % self.step == 0), default=0)

    @property
    def high(self) -> int | None:
        """The smallest tried value above `low` with which the script may not fit, or fails.

        None if there is no such value.
        """
        failed = [each.value for each in self.points if each.fits is False]
        above = (value for value in (*failed, *self.broken) if value > self.low)
        return min(above, default=None)

    @property
    def is_closed(self) -> bool:
        """Whether `low` and `high` are so close that no value between them is worth a try."""
        return self.high is not None and self.high - self.low <= (
            self.step if self._is_exact else self.tolerance(self.low)
        )

    @property
    def is_at_bound(self) -> bool:
        """Whether the largest multiple of `step` up to `at_most` fits."""
        return self.at_most is not None and self.low + self.step > self.at_most

    def tolerance(self, value: float) -> int:
        """Returns how far the answer may be from `value` at the end of an inexact search."""
        return max(self.step, int(value) // _TOLERANCE // self.step * self.step)

    @property
    def is_spent(self) -> bool:
        """Whether the search has used all its runs."""
        return not self._is_exact and self._runs >= MOST_RUNS

    @property
    def same_since(self) -> int | None:
        """The smallest known value that takes the same memory as every larger known value.

        None if `high` is known. Also None if the largest known value is less than `_PATIENCE` times
        this value, because memory may still grow with larger values.
        """
        known = sorted(self._known, key=lambda each: each.value)
        if not known or self.high is not None:
            return None
        same = known[-1].value
        for each in reversed(known):
            if each.requested_bytes != known[-1].requested_bytes:
                break
            same = each.value
        return same if known[-1].value >= _PATIENCE * same else None

    def first(self, value: int, count: int) -> list[Try]:
        """Returns the first try. If `count` is above 1, adds a scout to measure memory's growth."""
        if self.at_most is not None:
            value = min(value, self.at_most)
        value = max(value // self.step, 1) * self.step
        more = [Try(_GROWTH * value, scouts=True)] if count > 1 else []
        is_allowed = self.at_most is None or _GROWTH * value <= self.at_most
        return [Try(value), *(more if is_allowed else [])]

    def next(self, count: int) -> list[Try]:
        """Returns up to `count` values to try in parallel; none at the end of the search."""
        if not self._is_exact:
            count = min(count, MOST_RUNS - self._runs)
        if count < 1 or self.is_closed or self.is_at_bound:
            return []
        scouts = self._usable(self._far(count), scouts=True)
        if scouts:
            return scouts[-count:]
        tries = self._usable(self._near(count), scouts=False)
        bend = self._bend()
        if bend is not None and len(tries) > 1:
            return [tries[0], *self._usable([bend], scouts=True)]
        if not tries:
            tries = self._usable([(self.low + self._top + 1) / 2], scouts=False)
        return tries[-count:]

    @property
    def _runs(self) -> int:
        return len(self.points) + len(self.broken) + self.other_runs

    @property
    def _known(self) -> list[Point]:
        return [each for each in self.points if each.spare_bytes is not None]

    @property
    def _top(self) -> int:
        """The largest value to try in the next round. It follows from the results so far."""
        largest = max((each.value for each in self._known), default=self.step)
        top = max(largest, self.step) * _MOST_GROWTH if self.high is None else self.high - 1
        return top if self.at_most is None else min(top, self.at_most)

    def _usable(self, wanted: Iterable[float], *, scouts: bool) -> list[Try]:
        """Rounds the wanted values to multiples of `step`, and returns those not tried yet."""
        if scouts:
            least, top = self.step, self._top + (self.high is not None)
            tried = {each.value for each in self.points if each in self._known or each.is_scout}
        else:
            least, top = self.low + self.step, self._top
            tried = {each.value for each in self.points if each.fits is not None}
        top = top // self.step * self.step
        values = {min(max(self._round(value, scouts=scouts), least), top) for value in wanted}
        fresh = sorted(values - tried - self.broken)
        return [Try(value, scouts) for value in fresh if value >= least]

    def _round(self, value: float, *, scouts: bool) -> int:
        """Rounds down to a multiple of `step` times a power of two.

        Some scripts reject other numbers.
        """
        if value in (self.low, self.high):
            return int(value)  # this value was tried, so the script accepts it
        width = self.tolerance(value) if self.high is None else self.high - self.low
        leeway = value / _SCOUTS_LEEWAY if scouts else min(self.tolerance(value), width) / _LEEWAY
        unit = self.step
        while 2 * unit <= leeway:
            unit *= 2
        return int(value) // unit * unit

    def _estimate(self) -> float | None:
        known = [(float(each.value), float(each.spare_bytes or 0)) for each in self._known]
        value = crossing(known)
        if value is None and known:
            nearest = min(self._known, key=lambda each: abs(each.spare_bytes or 0))
            least = (nearest.spare_bytes or 0) + nearest.varying_bytes
            value = crossing([(nearest.value, nearest.spare_bytes or 0), (0, least)])
        return value

    def _far(self, count: int) -> list[float]:
        """Returns values to scout; none once the answer is near a known value."""
        if self.broken or sum(each.is_scout for each in self.points) >= _MOST_SCOUTS:
            return []
        if not self._known:
            assert self.high is not None
            return [self.high / 4, self.high] if count > 1 else [self.high / 2]
        value = self._estimate()
        if value is None or self._runs >= MOST_RUNS:
            return []
        wrong = self._wrong(value)
        value = max(min(value, self._top), self.step)
        nearest, distance = self._nearest(value)
        known = len(self._known)
        if wrong and distance > _CLOSE:
            return [self.low if self.high is None else self.high]
        if distance <= _NEAR[min(known, len(_NEAR)) - 1]:
            return []
        return [sqrt(nearest * value), value][-count:] if known == 1 else [value]

    def _bend(self) -> float | None:
        """Returns a value to scout between the estimate and the larger of two known values.

        If memory does not grow linearly, a line through the two known values has its largest error
        in this range. Returns None unless exactly two values are known, and the estimate lies
        between them and far below the larger one.
        """
        known = sorted(each.value for each in self._known)
        value = self._estimate()
        if len(known) != 2 or value is None or not known[0] < value < known[1] / _NEAR[1]:
            return None
        return sqrt(value * known[1])

    def _nearest(self, value: float) -> tuple[int, float]:
        """Returns the known value nearest to `value`, and the factor between these two values."""
        distances = {
            each.value: max(each.value / value, value / each.value) for each in self._known
        }
        nearest = min(distances, key=lambda each: distances[each])
        return nearest, distances[nearest]

    def _near(self, count: int) -> list[float]:
        """Returns values around the answer, one of which should fit."""
        low, high = self.low, self.high
        value = self._estimate()
        if high is not None and (self._runs >= MOST_RUNS or high - low <= self.tolerance(low)):
            return _between(low, high, count)  # only an exact search goes on here
        if high in self.broken and (value is None or value >= high):
            return _between(low, high, count)
        if value is None:
            return [self._top]
        # Each wrong estimate doubles the distance between the estimate and the next tries.
        wrong = self._wrong(value)
        value = max(min(value, self._top), self.step)
        is_doubtful = self._nearest(value)[1] > _CLOSE
        tolerance = self.tolerance(value * (1 - 2 / _TOLERANCE))
        reach = tolerance * 2**wrong
        if high is not None and high - low <= 2 * tolerance:
            return [(low + high) / 2]
        sure = _SURE * (value if high is None else min(value, high))
        if is_doubtful and MOST_RUNS - self._runs == count and low < sure:
            return [sure, value * (1 - 0.5 / _TOLERANCE)][:count]
        if high is not None and value >= high - tolerance / 4:
            tries = [max(high - reach, (low + high) / 2), high - 0.75 * tolerance]
            return tries[-1:] if MOST_RUNS - self._runs == 1 else tries[:count]
        if value > low + tolerance:
            doubt = max(0.37 * tolerance, value * _DOUBT * log2(self._nearest(value)[1]))
            return [max(value - doubt, low + 0.75 * tolerance), value + doubt][:count]
        if high is not None:
            reach = min(reach, (high - low) // 2)
        reach = max(reach, tolerance)
        return [low + reach] if count == 1 else [low + tolerance, low + max(reach, 2 * tolerance)]

    def _wrong(self, value: float) -> int:
        """Returns how many tried values show that `value` is not the largest that fits."""
        tried = [each for each in self.points if each.fits is not None]
        return sum(each.value >= value if each.fits else each.value <= value for each in tried)


def _between(low: float, high: float, count: int) -> list[float]:
    """Returns `count` values that divide the range evenly."""
    return [low + (high - low) * number / (count + 1) for number in range(1, count + 1)]
