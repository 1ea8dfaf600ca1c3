"""Chooses the whole numbers to try, until two of them enclose the largest that works."""

from __future__ import annotations

from math import isqrt

MOST_RUNS = 12
"""The most tries of a search that need not give the exact answer (`is_exact` is false)."""
_TOLERANCE = 100
"""A search that is not exact ends when `high - low` is at most `low` divided by this number."""
_GROWTH = 2
"""The factor between tries while only one bound of the answer is known."""


class Bisection:
    """The bounds of the answer so far, and the choice of the next number to try.

    Args:
        start: The first number to try.
        step: Only multiples of this number are tried.
        at_most: The largest number that may be tried; None for no bound.
        is_exact: Whether to continue until neighbouring numbers enclose the answer, however many
            tries this takes.
        is_near: Whether the answer is expected close to the start, as it is for
            `--gpu-memory-utilization`. This decides how the search goes on while only one bound is
            known. If true, the distance from this bound doubles with each try. If false, the tried
            number doubles or halves.

    Attributes:
        low: The largest tried number that works; 0 if no tried number works.
        high: The smallest tried number that is too much; None if no tried number is.
    """

    def __init__(
        self,
        start: int,
        *,
        step: int = 1,
        at_most: int | None = None,
        is_exact: bool = False,
        is_near: bool = False,
    ) -> None:
        self.low = 0
        self.high: int | None = None
        self._step = step
        self._at_most = at_most
        self._is_exact = is_exact
        self._is_near = is_near
        self._reach = step
        self._runs = 0
        self._hint: int | None = start

    @property
    def is_closed(self) -> bool:
        """Whether `low` and `high` are so close that no number between them is worth a try."""
        return self.high is not None and self.high - self.low <= self.tolerance

    @property
    def is_at_bound(self) -> bool:
        """Whether `low` is the largest multiple of `step` that may be tried."""
        return self._at_most is not None and self.low + self._step > self._at_most

    @property
    def is_spent(self) -> bool:
        """Whether the search has made all tries that it may make."""
        return not self._is_exact and self._runs >= MOST_RUNS

    @property
    def tolerance(self) -> int:
        """The difference between `low` and `high` at which the search ends."""
        if self._is_exact:
            return self._step
        return max(self._step, self.low // _TOLERANCE // self._step * self._step)

    def next(self) -> int | None:
        """Returns the number to try; None at the end of the search."""
        if self.is_closed or self.is_at_bound or self.is_spent:
            return None
        top = self._at_most if self.high is None else self.high - self._step
        value = self._between() if self._hint is None else self._hint
        if top is not None:
            value = min(value, top)
        return max(value // self._step * self._step, self.low + self._step)

    def learn(self, value: int, *, is_too_much: bool, hint: int | None = None) -> None:
        """Takes the result of a try.

        Args:
            value: The tried number.
            is_too_much: Whether it is too much.
            hint: A smaller number that should work, taken from the engine's error message.
        """
        was_hint = self._hint == value and self.high is not None
        self._runs += 1
        self._hint = None
        if not is_too_much:
            self.low = max(self.low, value)
            if was_hint:
                self._hint = value + self.tolerance
            return
        self.high = value if self.high is None else min(self.high, value)
        if hint is not None and self.low < hint <= self.high - self.high // _TOLERANCE:
            self._hint = hint

    def _between(self) -> int:
        low, high = self.low, self.high
        if low and high is not None:
            return (low + high) // 2 if self._is_near else isqrt(low * high)
        if self._is_near:
            self._reach *= 2
            return low + self._reach if high is None else high - self._reach
        return low * _GROWTH if high is None else high // _GROWTH
