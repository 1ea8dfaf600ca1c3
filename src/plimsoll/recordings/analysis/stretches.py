"""The blocks of a history by stretches: parts of it that follow each other."""

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
    """A part of a history. Numbers of events are those of the whole history.

    Attributes:
        first: Its first event.
        count: How many events it has.
        began: The blocks that it allocates, with their lives to the end.
        lives: How long each of them lives, counted in allocations; -1 if it is never freed. int64.
        carried: The blocks that were allocated before it and are live at its beginning.
    """

    first: int
    count: int
    began: Lifetimes
    lives: NDArray[np.int64]
    carried: Lifetimes

    @property
    def last(self) -> int:
        """The event behind it."""
        return self.first + self.count

    @cached_property
    def level(self) -> NDArray[np.int64]:
        """The bytes in live blocks after each of its events."""
        change = np.zeros(self.count + 1, dtype=np.int64)
        change[self.began.start - self.first] = self.began.size
        # Of an event, at most one block begins or ends there.
        for blocks in (self.began, self.carried):
            ends = (blocks.end >= self.first) & (blocks.end < self.last)
            change[blocks.end[ends] - self.first] -= blocks.size[ends].astype(np.int64)
        before = int(self.carried.size[self.carried.end >= self.first].sum())
        return np.cumsum(change[: self.count]) + before

    def part(self, first: int, last: int) -> Stretch:
        """What of it lies between two events, `last` not included."""
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
    """A history that gives its stretches in order, as often as they are asked for.

    Attributes:
        event_count: How many events the history has.
    """

    event_count: int

    @abstractmethod
    def __iter__(self) -> Iterator[Stretch]:
        """Go through the stretches."""

    def window(self, first: int, last: int) -> Stretch:
        """What lies between two events, `last` not included, as one stretch."""
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
    """A history whose blocks are there all at once: one stretch."""

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
