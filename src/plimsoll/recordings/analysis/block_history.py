"""Reads a history of any length in parts, called stretches.

The first reading of the history pairs each allocation with its free. It keeps only the pairs whose
free is in a later stretch than the allocation; such pairs are few. Each later reading yields the
stretches in order. If a block is still live at the end of a stretch, it is carried to the next
stretch. The stretch that contains a block's allocation already says when the block is freed, even
if the free is in a later stretch.

A block that was allocated before the first event has no allocation in the history: it has only a
free, or it is in the final segments.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.recordings.analysis.lifetimes import COLUMNS, Lifetimes
from plimsoll.recordings.analysis.pairing import Pairs, Rows, pair
from plimsoll.recordings.analysis.stretches import Stretch, Stretches
from plimsoll.recordings.events import Action, EventBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.recording import DeviceTrace

STRETCH = 1 << 18
"""The number of events in a stretch."""


def find_lifetimes(trace: DeviceTrace) -> Lifetimes:
    """Pairs the allocations of a history with their frees.

    It reads the events twice. Ten million events take seconds and a few hundred MiB. In a damaged
    history only the consistent events are paired.
    """
    history = BlockHistory(trace)
    return Lifetimes.join(chain([history.before], (stretch.began for stretch in history)))


class BlockHistory(Stretches):
    """The blocks of one device, one stretch at a time.

    Attributes:
        event_count: The number of events.
        before: The blocks that were live before the first event, in the order of their addresses.
        begin_us: The time of the first event, in microseconds since the epoch.
        end_us: The latest time of all events.
    """

    def __init__(self, trace: DeviceTrace, *, events: int = STRETCH) -> None:
        """Reads the history once, to find the ends of blocks that outlive their stretch.

        Args:
            trace: The events.
            events: The number of events in a stretch.
        """
        self.event_count = trace.event_count
        self._trace = trace
        self._events = events
        self._pools = {(0, 0): 0}
        self.begin_us = self.end_us = 0
        self._outliving, self.before = self._settle()

    def __iter__(self) -> Iterator[Stretch]:
        """See `Stretches`."""
        for stretch, _ in self.with_events():
            yield stretch

    def with_events(self) -> Iterator[tuple[Stretch, EventBatch]]:
        """Yields each stretch with its events."""
        carried = self.before
        requests = 0
        for first, events in self._batches():
            pairs = pair(Rows.of(events, first, requests), self.event_count).pairs
            pairs = self._to_the_end(pairs[pairs.is_known])
            began = self._blocks(pairs, events, first)
            lives = pairs.end_rank - np.arange(requests, requests + len(pairs))
            lives[pairs.end >= self.event_count] = -1
            stretch = Stretch(first, len(events), began, lives, carried)
            yield stretch, events
            requests += len(pairs)
            last = stretch.last
            carried = Lifetimes.join([carried[carried.end >= last], began[began.end >= last]])

    def _batches(self) -> Iterator[tuple[int, EventBatch]]:
        """Yields for each stretch the number of its first event, and its events."""
        first = count = 0
        waiting: list[EventBatch] = []
        for batch in self._trace.batches():
            begin = 0
            while begin < len(batch):
                waiting.append(batch[begin : begin + self._events - count])
                begin += len(waiting[-1])
                count += len(waiting[-1])
                if count == self._events:
                    yield first, EventBatch.join(waiting)
                    first, count, waiting = first + count, 0, []
        if waiting:
            yield first, EventBatch.join(waiting)

    def _settle(self) -> tuple[Pairs, Lifetimes]:
        """Returns the blocks that outlive their stretch, and those older than the first event."""
        at_start = self._start_segments()
        start_addresses = np.array([b.address for s in at_start for b in s.blocks], dtype=np.uint64)
        is_used = np.zeros(len(start_addresses), dtype=bool)
        rows = Rows.none()
        settled: list[Pairs] = []
        orphans = [Lifetimes.none(self.event_count)]
        requests = 0
        for first, events in self._batches():
            self.begin_us = int(events.time_us[0]) if first == 0 else self.begin_us
            self.end_us = max(self.end_us, int(events.time_us.max()))
            new = Rows.of(events, first, requests)
            requests += int((new.action == Action.ALLOC).sum())
            is_used |= np.isin(start_addresses, new.address)
            rows = Rows.join([rows, new])
            paired = pair(rows, self.event_count)
            pairs = paired.pairs
            is_new = pairs.opening >= first
            orphans.append(self._blocks(pairs[is_new & ~pairs.is_known], events, first))
            is_lost = pairs.completed == self.event_count
            is_open = paired.is_last & is_lost
            settled.append(pairs[~is_open & (~is_new | ~pairs.is_known | is_lost)])
            rows = rows[is_open[paired.block]]
        settled.append(pair(rows, self.event_count).pairs)
        ends = Pairs.join(settled)
        ends = ends[np.argsort(ends.opening)]
        before = self._before(Lifetimes.join(orphans), ends[~ends.is_known])
        ends = ends[ends.is_known]
        if self._trace.segments:
            live = np.concatenate(
                [one.address[one.completed == self.event_count] for one in (ends, before)]
            )
            before = _with_untouched(before, self._trace.segments, live, self._pools)
        else:
            before = _with_untouched(before, at_start, start_addresses[is_used], self._pools)
        before = _with_stacks(before, self._trace.start_stacks())
        return ends, before[np.argsort(before.address, kind="stable")]

    def _start_segments(self) -> Sequence[_core.SegmentInfo]:
        """Returns the initial segments if the recording has no final segments, else none."""
        if self._trace.segments:
            return []
        with suppress(InputError):
            return self._trace.start("", _core.NEWEST_VERSION)
        return []

    def _before(self, orphans: Lifetimes, ends: Pairs) -> Lifetimes:
        """Returns the blocks that are older than the first event.

        Args:
            orphans: The blocks whose first event is a free.
            ends: The ends of these blocks, in the same order.
        """
        first_use = self._first_use(orphans.address[orphans.start >= self._events])
        is_first = [
            first_use.get(address, event) == event
            for address, event in zip(orphans.address.tolist(), orphans.start.tolist(), strict=True)
        ]
        found = replace(
            orphans,
            start=np.full(len(ends), -1, dtype=np.int64),
            end=ends.end,
            completed=ends.completed,
            # 0, unknown: the recorded stack is that of the free, not of the allocation.
            stack=np.zeros(len(ends), dtype=np.uint32),
        )
        return found[np.array(is_first, dtype=bool)]

    def _first_use(self, addresses: NDArray[np.uint64]) -> dict[int, int]:
        """Returns the first event at each address. Later events there belong to newer blocks."""
        found: dict[int, int] = {}
        if not len(addresses):
            return found
        for first, events in self._batches():
            is_there = (events.action <= Action.FREE_COMPLETED) & np.isin(events.address, addresses)
            for row in np.flatnonzero(is_there).tolist():
                found.setdefault(int(events.address[row]), first + row)
        return found

    def _to_the_end(self, pairs: Pairs) -> Pairs:
        """Fills in the ends of blocks that outlive their stretch."""
        known = self._outliving
        if not len(known):
            return pairs
        place = np.minimum(np.searchsorted(known.opening, pairs.opening), len(known) - 1)
        outlives = known.opening[place] == pairs.opening
        return replace(
            pairs,
            end=np.where(outlives, known.end[place], pairs.end),
            end_rank=np.where(outlives, known.end_rank[place], pairs.end_rank),
            completed=np.where(outlives, known.completed[place], pairs.completed),
        )

    def _blocks(self, pairs: Pairs, events: EventBatch, first: int) -> Lifetimes:
        """Makes the blocks whose first events are among `events`."""
        rows = pairs.opening - first
        pool = _pool_numbers(events.pool_first[rows], events.pool_second[rows], self._pools)
        return Lifetimes(
            event_count=self.event_count,
            start=pairs.opening,
            end=pairs.end,
            completed=pairs.completed,
            address=pairs.address,
            size=events.size[rows],
            shared=events.shared[rows],
            stream=events.stream[rows],
            stack=events.stack[rows],
            pool=pool,
            pools=list(self._pools),
        )


def _pool_numbers(
    first: NDArray[np.uint64], second: NDArray[np.uint64], pools: dict[tuple[int, int], int]
) -> NDArray[np.uint32]:
    """Returns the numbers of memory pools. Adds new pools to `pools` with the next free numbers.

    A pool's id has two parts: one is in `first`, the other in `second`.
    """
    numbers = np.zeros(len(first), dtype=np.uint32)
    private = np.flatnonzero((first != 0) | (second != 0))
    if len(private) == 0:
        return numbers
    ids = np.stack([first[private], second[private]], axis=1)
    unique, place = np.unique(ids, axis=0, return_inverse=True)
    known = [pools.setdefault((int(a), int(b)), len(pools)) for a, b in unique]
    numbers[private] = np.array(known, dtype=np.uint32)[place.reshape(-1)]
    return numbers


def _with_stacks(lifetimes: Lifetimes, stacks: Mapping[int, int]) -> Lifetimes:
    """Fills in missing call stacks. `stacks` maps the addresses of blocks to their stacks."""
    if not stacks:
        return lifetimes
    known = [stacks.get(address, 0) for address in lifetimes.address.tolist()]
    unknown = lifetimes.stack == 0
    return replace(
        lifetimes, stack=np.where(unknown, np.array(known, dtype=np.uint32), lifetimes.stack)
    )


def _with_untouched(
    lifetimes: Lifetimes,
    segments: Sequence[_core.SegmentInfo],
    known: NDArray[np.uint64],
    pools: dict[tuple[int, int], int],
) -> Lifetimes:
    """Adds the blocks in `segments` that have no event.

    `known` has the addresses of all events.
    """
    seen = set(known.tolist())
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
        name: np.array(values, dtype=getattr(lifetimes, name).dtype)
        for name, values in zip(COLUMNS, zip(*untouched, strict=True), strict=True)
    }
    new = Lifetimes(event_count=lifetimes.event_count, pools=list(pools), **columns)
    return Lifetimes.join([new, lifetimes])
