"""Describes every block of a history: its allocation, its free, and the stack of its request."""

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

    The blocks that are older than the first event come first, sorted by address.

    A block is live after event `e` if `start <= e < end`.

    Attributes:
        event_count: The number of events in the history.
        start: The event that allocated the block; -1 if it is older than the first event. int64.
        end: The event that requested its free; `event_count` if there is none, -1 if the request is
            older than the first event. int64.
        completed: The event that completed the free; `event_count` if there is none. int64.
        address: The address. uint64.
        size: Requested bytes. uint64.
        shared: The part of the requested bytes that lies in host memory. uint64.
        stream: The stream's handle. uint64.
        stack: Numbers of the requesting call stacks; 0 for none. uint32.
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
        """Makes a table without blocks."""
        columns = {name: np.zeros(0, dtype=dtype) for name, dtype in COLUMNS.items()}
        return cls(event_count=event_count, pools=((0, 0),), **columns)

    @classmethod
    def join(cls, parts: Iterable[Lifetimes]) -> Lifetimes:
        """Joins the blocks of one or more consecutive parts of a history."""
        known = list(parts)
        event_count, pools = known[0].event_count, max((one.pools for one in known), key=len)
        columns = [{name: getattr(one, name) for name in COLUMNS} for one in known]
        del parts, known
        # Each joined column is dropped from the parts, so that not everything is in memory twice.
        joined = {name: np.concatenate([one.pop(name) for one in columns]) for name in COLUMNS}
        return cls(event_count=event_count, pools=pools, **joined)

    def live_at(self, event: int) -> NDArray[np.int64]:
        """Returns the indices of the blocks that are live after `event`.

        If `event` is -1, these are the blocks that are live before the first event.
        """
        return np.flatnonzero((self.start <= event) & (self.end > event))

    def level(self, sizes: NDArray[np.uint64] | None = None) -> NDArray[np.int64]:
        """Returns the bytes in live blocks after each event.

        Args:
            sizes: The size of each block; by default the requested bytes.
        """
        counted = (self.size if sizes is None else sizes).astype(np.int64)
        change = np.zeros(self.event_count + 1, dtype=np.int64)
        began = self.start >= 0
        change[self.start[began]] = counted[began]
        # No index occurs twice, because at most one block begins or ends at each event.
        ended = (self.end >= 0) & (self.end < self.event_count)
        change[self.end[ended]] -= counted[ended]
        before = int(counted[~began & (self.end >= 0)].sum())
        return np.cumsum(change[: self.event_count]) + before
