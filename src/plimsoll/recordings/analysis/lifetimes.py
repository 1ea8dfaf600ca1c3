"""Every block of a history: when it was allocated, when it was freed, and what asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


COLUMNS: dict[str, type[np.generic]] = {
    "start": np.int64,
    "end": np.int64,
    "completed": np.int64,
    "address": np.uint64,
    "size": np.uint64,
    "shared": np.uint64,
    "stream": np.uint64,
    "stack": np.uint32,
    "pool": np.uint32,
}
"""The columns of `Lifetimes` and their types."""


@dataclass(frozen=True)
class Lifetimes:
    """The blocks of one device as columns of length m, in order of allocation.

    Those that were live before the first event come first, by address.

    A block is live after event `e` if `start <= e < end`.

    Attributes:
        event_count: How many events the history has.
        start: The event that allocated it; -1 for what was live before the first event. int64.
        end: The event that asked for its free; `event_count` where none does, -1 where that was
            before the first event. int64.
        completed: The event that completed the free; `event_count` where none does. int64.
        address: Addresses. uint64.
        size: Bytes asked for. uint64.
        shared: What of them lies in shared memory. uint64.
        stream: Streams. uint64.
        stack: Numbers of the call stacks that asked; 0 for none. uint32.
        pool: Indices into `pools`. uint32.
        pools: The ids of private pools; the first is the default pool, (0, 0).
    """

    event_count: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    completed: NDArray[np.int64]
    address: NDArray[np.uint64]
    size: NDArray[np.uint64]
    shared: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    stack: NDArray[np.uint32]
    pool: NDArray[np.uint32]
    pools: Sequence[tuple[int, int]] = field(default=((0, 0),))

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, part: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Lifetimes:
        columns = {name: getattr(self, name)[part] for name in COLUMNS}
        return Lifetimes(event_count=self.event_count, pools=self.pools, **columns)

    @classmethod
    def none(cls, event_count: int) -> Lifetimes:
        """No blocks."""
        columns = {name: np.zeros(0, dtype=dtype) for name, dtype in COLUMNS.items()}
        return cls(event_count=event_count, pools=((0, 0),), **columns)

    @classmethod
    def join(cls, parts: Iterable[Lifetimes]) -> Lifetimes:
        """Those of several parts that follow each other, of one history; there is at least one."""
        known = list(parts)
        event_count, pools = known[0].event_count, max((one.pools for one in known), key=len)
        columns = [{name: getattr(one, name) for name in COLUMNS} for one in known]
        del parts, known
        # Parts go as their column is joined, so that not all is in memory twice.
        joined = {name: np.concatenate([one.pop(name) for one in columns]) for name in COLUMNS}
        return cls(event_count=event_count, pools=pools, **joined)

    def live_at(self, event: int) -> NDArray[np.int64]:
        """The indices of the blocks that are live after `event`; -1 is before the first."""
        return np.flatnonzero((self.start <= event) & (self.end > event))

    def level(self, sizes: NDArray[np.uint64] | None = None) -> NDArray[np.int64]:
        """The bytes in live blocks after each event.

        Args:
            sizes: What each block counts; by default what was asked for.
        """
        counted = (self.size if sizes is None else sizes).astype(np.int64)
        change = np.zeros(self.event_count + 1, dtype=np.int64)
        began = self.start >= 0
        change[self.start[began]] = counted[began]
        # Of an event, at most one block begins or ends there.
        ended = (self.end >= 0) & (self.end < self.event_count)
        change[self.end[ended]] -= counted[ended]
        before = int(counted[~began & (self.end >= 0)].sum())
        return np.cumsum(change[: self.event_count]) + before
