"""Uses the recorded events to rebuild the state that an allocator had after a given event.

This works for every allocator.

Segment events give the reserved memory; live blocks lie at the addresses recorded for them. Under
the elastic allocator all figures are exact: each segment event is about one piece, which moves or
is released as a whole, and block sizes are multiples of 512 bytes. PyTorch's allocator may
serve a request with a larger block, if the part that is not needed is too small to split off.
Events do not show that part, so here it counts as a fragment.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.explanation.pieces import granules
from plimsoll.explanation.state import Past
from plimsoll.recordings.analysis.rounding import rounded_sizes
from plimsoll.recordings.analysis.segments import find_segments
from plimsoll.recordings.events import Action, EventBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from plimsoll.engine.replays.parts import PeakBreakdown
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.recording import DeviceTrace

_ABOUT_SEGMENTS = (
    Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP
)  # fmt: skip


class RecordedPast(Past):
    """The states of the allocator as they were recorded.

    Args:
        trace: The events.
        lifetimes: The blocks.
        allocator: The recorded allocator.
        conf: PyTorch's configuration, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        version: The version of PyTorch.
        fragments_bytes: The elastic allocator's own count of the free bytes in partly used pieces.
            None if the recording lacks this count, or if its events show the pieces.
    """

    num_alloc_retries = None

    def __init__(
        self,
        trace: DeviceTrace,
        lifetimes: Lifetimes,
        allocator: str,
        conf: str,
        version: str,
        fragments_bytes: int | None = None,
    ) -> None:
        super().__init__(trace, allocator, conf, version)
        numbers, events = _events_about_segments(trace)
        self._ranges, self.notes = find_segments(events, numbers, trace, conf)
        self._pools = self._pools_of_ranges(numbers, events, conf, version)
        self._lifetimes = lifetimes
        self._sizes = rounded_sizes(lifetimes.size, self.round_request).astype(np.int64)
        self._fragments = fragments_bytes
        self._set_peaks()
        is_piecewise = (
            not self.moves or fragments_bytes is not None or bool((self._ranges.start >= 0).all())
        )
        self.is_exact = not self._is_torch and is_piecewise and not self.notes

    def _pools_of_ranges(
        self, numbers: NDArray[np.int64], events: EventBatch, conf: str, version: str
    ) -> list[tuple[int, int]]:
        try:
            before = self.trace.start(conf, version) or self.trace.segments
        except InputError:
            before = self.trace.segments
        begins = [segment.address for segment in before]
        pools = []
        for start, address in zip(
            self._ranges.start.tolist(), self._ranges.address.tolist(), strict=True
        ):
            if start >= 0:
                row = int(np.searchsorted(numbers, start))
                pools.append((int(events.pool_first[row]), int(events.pool_second[row])))
            else:
                pool = before[max(bisect_right(begins, address) - 1, 0)].pool
                pools.append((pool.first, pool.second))
        return pools

    def _set_peaks(self) -> None:
        ranges = self._ranges
        reserved = self._level(ranges.size.astype(np.int64))
        dedicated = self._level((ranges.size - ranges.shared).astype(np.int64))
        self.peak_allocated_bytes = 0  # unknown: events have requested sizes only
        self.peak_dedicated_bytes = int(dedicated.max(initial=0))
        event = _fullest_moment(reserved, self._lifetimes, self._sizes)
        now = (ranges.start <= event) & (ranges.end > event)
        self.peak_shared_bytes = int(ranges.shared[now].sum())
        self.peak = self.breakdown(event)

    def _level(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns, for each event, how many bytes are reserved in the state after the event.

        `sizes` has the bytes to count for each range.
        """
        count = self.trace.event_count
        change = np.zeros(count + 1, dtype=np.int64)
        np.add.at(change, np.maximum(self._ranges.start, 0), sizes)
        np.add.at(change, self._ranges.end, -sizes)
        return np.cumsum(change[:count])

    def breakdown(self, event: int) -> PeakBreakdown:
        """See `Past.breakdown`. The elastic allocator's own count of fragments comes first."""
        found = super().breakdown(event)
        if self._fragments is None:
            return found
        free = found.cached_bytes + found.split_bytes
        cached = max(free - self._fragments, 0)
        return replace(found, cached_bytes=cached, split_bytes=free - cached)

    def after(self, event: int) -> list[_core.SegmentInfo]:
        """See `Past.after`.

        Adjacent mapped ranges become one segment if they have the same stream and the same pool.
        """
        found: list[_Range] = []
        for new in self._ranges_after(event):
            if found and found[-1].continues_in(new):
                found[-1] = found[-1]._replace(size=found[-1].size + new.size)
            else:
                found.append(new)
        return self._with_blocks(found, event)

    def units(self, event: int) -> list[_core.SegmentInfo]:
        """See `Past.units`.

        If the allocator moves memory, a range that was reserved before the first event is split
        into granules.
        """
        found: list[_Range] = []
        for one in self._ranges_after(event):
            found += one.granules() if self.moves and not one.was_seen else [one]
        return self._with_blocks(found, event)

    def movable_bytes(self, event: int) -> int | None:
        """See `Past.movable_bytes`."""
        return self.breakdown(event).cached_bytes if self.moves else None

    def _ranges_after(self, event: int) -> list[_Range]:
        ranges = self._ranges
        now = np.flatnonzero((ranges.start <= event) & (ranges.end > event))
        now = now[np.argsort(ranges.address[now])]
        return [
            _Range(
                int(ranges.address[row]),
                int(ranges.size[row]),
                int(ranges.stream[row]),
                self._pools[row],
                bool(ranges.expandable[row]),
                bool(ranges.start[row] >= 0),
            )
            for row in now.tolist()
        ]

    def _with_blocks(self, ranges: Iterable[_Range], event: int) -> list[_core.SegmentInfo]:
        blocks = self._lifetimes
        held = np.flatnonzero((blocks.start <= event) & (blocks.completed > event))
        held = held[np.argsort(blocks.address[held])]
        begin = blocks.address[held].astype(np.int64)
        end = begin + self._sizes[held]
        requested = blocks.size[held].astype(np.int64)
        is_pending = blocks.end[held] <= event
        segments = []
        for one in ranges:
            first = int(np.searchsorted(end, one.address, side="right"))
            last = int(np.searchsorted(begin, one.end, side="left"))
            parts: list[_core.BlockInfo] = []
            at = one.address
            for row in range(first, last):
                # Blocks of a damaged history may overlap. The bytes that two blocks share then
                # count for the block at the lower address.
                low, high = max(int(begin[row]), at), min(int(end[row]), one.end)
                if high <= low:
                    continue
                if low > at:
                    parts.append(_core.BlockInfo(at, low - at, 0, "inactive"))
                # If a block spans several ranges, its rounding is in the last of them.
                asked = min(high, int(begin[row]) + int(requested[row])) - low
                state = "active_pending_free" if is_pending[row] else "active_allocated"
                parts.append(_core.BlockInfo(low, high - low, max(asked, 0), state))
                at = high
            if at < one.end:
                parts.append(_core.BlockInfo(at, one.end - at, 0, "inactive"))
            segments.append(one.with_blocks(parts))
        return segments


class _Range(NamedTuple):
    """A reserved range of addresses."""

    address: int
    size: int
    stream: int
    pool: tuple[int, int]
    is_mapped: bool
    was_seen: bool
    """Whether the recording has the event that reserved the range."""

    @property
    def end(self) -> int:
        return self.address + self.size

    def continues_in(self, other: _Range) -> bool:
        is_alike = (self.stream, self.pool) == (other.stream, other.pool)
        return is_alike and self.is_mapped and other.is_mapped and self.end == other.address

    def granules(self) -> list[_Range]:
        return [
            self._replace(address=address, size=size)
            for address, size in granules(self.address, self.size)
        ]

    def with_blocks(self, blocks: list[_core.BlockInfo]) -> _core.SegmentInfo:
        pool = _core.PoolId(*self.pool)
        return _core.SegmentInfo(
            self.address, self.size, self.stream, pool, False, self.is_mapped, 0, blocks
        )


def _events_about_segments(trace: DeviceTrace) -> tuple[NDArray[np.int64], EventBatch]:
    numbers: list[NDArray[np.int64]] = []
    parts: list[EventBatch] = []
    passed = 0
    for batch in trace.batches():
        rows = np.flatnonzero(np.isin(batch.action, _ABOUT_SEGMENTS))
        numbers.append(rows + passed)
        parts.append(batch[rows])
        passed += len(batch)
    return np.concatenate([np.empty(0, np.int64), *numbers]), EventBatch.join(parts)


def _fullest_moment(
    reserved: NDArray[np.int64], lifetimes: Lifetimes, sizes: NDArray[np.int64]
) -> int:
    """Returns the event with the most live memory among those with the most reserved memory.

    A program may reserve its peak early and fill it later. Freed blocks count as live for as long
    as another stream may use them. Returns the first of several such events, and -1 if there are no
    events.

    Args:
        reserved: The reserved bytes after each event.
        lifetimes: The blocks.
        sizes: The size of each block, rounding included.
    """
    if not len(reserved):
        return -1
    level = np.zeros(len(reserved) + 1, dtype=np.int64)
    np.add.at(level, np.maximum(lifetimes.start, 0), sizes)
    np.subtract.at(level, lifetimes.completed, sizes)
    level = np.cumsum(level[:-1])
    return int(np.where(reserved == reserved.max(), level, -1).argmax())
