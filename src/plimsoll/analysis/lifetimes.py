"""Every block of a history: when it was allocated, when it was freed, and what asked for it.

A history names blocks by address, and an address is used again and again. In the order of (address,
event), each allocation is followed by its own free and then by its completion, so that one sort
pairs them all. What was live before the first event shows itself by a free that nothing allocated,
or by a block of the final segments that nothing allocated.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.recording import DeviceTrace


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
        columns = {name: getattr(self, name)[part] for name in _COLUMNS}
        return Lifetimes(event_count=self.event_count, pools=self.pools, **columns)

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


_COLUMNS = (
    "start", "end", "completed", "address", "size", "shared", "stream", "stack", "pool",
)  # fmt: skip


def find_lifetimes(trace: DeviceTrace) -> Lifetimes:
    """Pair the allocations of a history with their frees.

    Takes seconds and a few hundred MiB for ten million events, which it goes through twice. A
    history that was damaged gives what can be paired.
    """
    opening, start, end, completed = _pair(trace)
    columns, pools = _columns_at(trace, opening)
    columns["stack"][start < 0] = 0  # it is that of the free
    lifetimes = Lifetimes(
        event_count=trace.event_count,
        start=start,
        end=end,
        completed=completed,
        pools=pools,
        **columns,
    )
    if trace.segments:
        live = lifetimes.address[lifetimes.completed == lifetimes.event_count]
        lifetimes = _with_untouched(lifetimes, trace.segments, live)
    else:  # a recording that was cut off; what lived through it shows at its start only
        with suppress(InputError):
            start_segments = trace.start("", _core.NEWEST_VERSION)
            lifetimes = _with_untouched(lifetimes, start_segments, lifetimes.address)
    before, since = np.flatnonzero(lifetimes.start < 0), np.flatnonzero(lifetimes.start >= 0)
    before = before[np.argsort(lifetimes.address[before], kind="stable")]
    return lifetimes[np.concatenate([before, since])]


def _pair(trace: DeviceTrace) -> tuple[NDArray[np.int64], ...]:
    """For each block in order: its first event, which may be its free, start, end, completed."""
    numbers, actions, addresses = [], [], []
    passed = 0
    for batch in trace.batches():
        rows = np.flatnonzero(batch.action <= Action.FREE_COMPLETED)
        numbers.append(rows + passed)
        actions.append(batch.action[rows])
        addresses.append(batch.address[rows])
        passed += len(batch)
    if not numbers:
        return (np.zeros(0, dtype=np.int64),) * 4
    address = np.concatenate(addresses)
    # Stable: within an address, in the order of events.
    order = np.argsort(address, kind="stable")
    address = address[order]
    action = np.concatenate(actions)[order]
    event = np.concatenate(numbers)[order]
    opens = action == Action.ALLOC
    opens[:1] = True
    opens[1:] |= address[1:] != address[:-1]
    block = np.cumsum(opens) - 1
    opening = event[opens]
    known = action[opens] == Action.ALLOC

    def first_of(kind: Action) -> NDArray[np.int64]:
        """For each block, its first event of a kind."""
        found = np.full(len(opening), trace.event_count, dtype=np.int64)
        rows = np.flatnonzero(action == kind)[::-1]
        found[block[rows]] = event[rows]  # of several, the last one written stays
        return found

    end, completed = first_of(Action.FREE_REQUESTED), first_of(Action.FREE_COMPLETED)
    # Completed without a request: that was before the first event, or is missing.
    unasked = completed < end
    end[unasked] = np.where(known[unasked], completed[unasked], -1)
    start = np.where(known, opening, -1)
    by_event = np.argsort(opening)
    return tuple(column[by_event] for column in (opening, start, end, completed))


def _columns_at(
    trace: DeviceTrace, events: NDArray[np.int64]
) -> tuple[dict[str, NDArray[Any]], list[tuple[int, int]]]:
    """The other columns at these events, which are in order, and the pools that they name."""
    pools = {(0, 0): 0}
    names = {"address": np.uint64, "size": np.uint64, "shared": np.uint64, "stream": np.uint64,
             "stack": np.uint32, "pool": np.uint32}  # fmt: skip
    columns = {name: np.zeros(len(events), dtype=dtype) for name, dtype in names.items()}
    passed = 0
    for batch in trace.batches():
        part = slice(*np.searchsorted(events, (passed, passed + len(batch))))
        rows = events[part] - passed
        for name in ("address", "size", "shared", "stream", "stack"):
            columns[name][part] = getattr(batch, name)[rows]
        columns["pool"][part] = _pool_numbers(
            batch.pool_first[rows], batch.pool_second[rows], pools
        )
        passed += len(batch)
    return columns, list(pools)


def _pool_numbers(
    first: NDArray[np.uint64], second: NDArray[np.uint64], pools: dict[tuple[int, int], int]
) -> NDArray[np.uint32]:
    """The numbers of these pools; those that are new are added to `pools`."""
    numbers = np.zeros(len(first), dtype=np.uint32)
    private = np.flatnonzero((first != 0) | (second != 0))
    if len(private) == 0:
        return numbers
    ids = np.stack([first[private], second[private]], axis=1)
    unique, place = np.unique(ids, axis=0, return_inverse=True)
    known = [pools.setdefault((int(a), int(b)), len(pools)) for a, b in unique]
    numbers[private] = np.array(known, dtype=np.uint32)[place.reshape(-1)]
    return numbers


def _with_untouched(
    lifetimes: Lifetimes, segments: Sequence[_core.SegmentInfo], known: NDArray[np.uint64]
) -> Lifetimes:
    """Adds the blocks of `segments` that no event is about: those at other addresses than known."""
    if not segments:
        return lifetimes
    seen = set(known.tolist())
    pools = {pool: number for number, pool in enumerate(lifetimes.pools)}
    untouched = [
        (
            -1,
            lifetimes.event_count if block.state == "active_allocated" else -1,
            lifetimes.event_count,
            block.address,
            block.requested or block.size,
            block.shared,
            segment.stream,
            block.context,
            pools.setdefault((segment.pool.first, segment.pool.second), len(pools)),
        )
        for segment in segments
        for block in segment.blocks
        if block.state != "inactive" and block.address not in seen
    ]
    if not untouched:
        return lifetimes
    columns = {
        name: np.concatenate(
            [np.array(values, dtype=getattr(lifetimes, name).dtype), getattr(lifetimes, name)]
        )
        for name, values in zip(_COLUMNS, zip(*untouched, strict=True), strict=True)
    }
    return Lifetimes(event_count=lifetimes.event_count, pools=list(pools), **columns)
