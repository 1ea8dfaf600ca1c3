"""Holds the blocks of a history in stretches, which are consecutive parts of the history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.analysis.lifetimes import Lifetimes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Stretch:
    """A part of a history. Its events keep their numbers in the whole history.

    Attributes:
        first: The first event of the part.
        count: The number of events in the part.
        began: The blocks allocated in the part. Some may be freed after the part.
        lives: The lifetime of each block of `began`, counted in allocations; -1 if it is never
            freed. int64.
        carried: The blocks that are live at the part's beginning.
    """

    first: int
    count: int
    began: Lifetimes
    lives: NDArray[np.int64]
    carried: Lifetimes

    @property
    def last(self) -> int:
        """Returns the number of the event after the part."""
        return self.first + self.count

    @cached_property
    def level(self) -> NDArray[np.int64]:
        """Returns the bytes in live blocks after each event of the part."""
        change = np.zeros(self.count + 1, dtype=np.int64)
        change[self.began.start - self.first] = self.began.size
        # No index occurs twice, because at most one block begins or ends at each event.
        for blocks in (self.began, self.carried):
            ends = (blocks.end >= self.first) & (blocks.end < self.last)
            change[blocks.end[ends] - self.first] -= blocks.size[ends].astype(np.int64)
        before = int(self.carried.size[self.carried.end >= self.first].sum())
        return np.cumsum(change[: self.count]) + before

    def part(self, first: int, last: int) -> Stretch:
        """Returns the part from event `first` up to, but without, event `last`."""
        first, last = max(first, self.first), min(last, self.last)
        if (first, last) == (self.first, self.last):
            return self
        inside = slice(*np.searchsorted(self.began.start, (first, last)))
        older = self.began[: inside.start]
        carried = (self.carried[self.carried.end >= first], older[older.end >= first])
        return Stretch(
            first, last - first, self.began[inside], self.lives[inside], Lifetimes.join(carried)
        )


class Stretches(ABC):
    """A history that yields its stretches in order, any number of times.

    Attributes:
        event_count: The number of events in the history.
    """

    event_count: int

    @abstractmethod
    def __iter__(self) -> Iterator[Stretch]:
        """Yields the stretches."""

    def window(self, first: int, last: int) -> Stretch:
        """Returns the events from `first` to `last - 1` as one stretch."""
        parts: list[Stretch] = []
        for stretch in self:
            if stretch.first >= last:
                break
            if stretch.last > first:
                parts.append(stretch.part(first, last))
        if len(parts) == 1:
            return parts[0]
        return Stretch(
            parts[0].first,
            sum(part.count for part in parts),
            Lifetimes.join(part.began for part in parts),
            np.concatenate([part.lives for part in parts]),
            parts[0].carried,
        )


class WholeStretch(Stretches):
    """A history as a single stretch, with all blocks in memory."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.event_count = lifetimes.event_count
        self._lifetimes = lifetimes

    def __iter__(self) -> Iterator[Stretch]:
        """See `Stretches`."""
        before = int(np.searchsorted(self._lifetimes.start, 0))
        began = self._lifetimes[before:]
        lives = np.searchsorted(began.start, began.end) - np.arange(len(began))
        lives[began.end >= self.event_count] = -1
        yield Stretch(0, self.event_count, began, lives, self._lifetimes[:before])
