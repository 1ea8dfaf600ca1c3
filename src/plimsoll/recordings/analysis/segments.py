"""Finds when each piece of reserved memory was taken from the driver and released."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.events import EventBatch
    from plimsoll.recordings.recording import DeviceTrace


@dataclass(frozen=True)
class SegmentLifetimes:
    """Ranges of reserved memory, as columns of length m.

    A range is reserved after event `e` if `start <= e < end`. A segment that is unmapped in parts
    becomes several ranges.

    Attributes:
        start: The event that took the range from the driver; -1 if it is older than the first
            event. int64.
        end: The event that released the range; the number of events if there is none. int64.
        address: The first address. uint64.
        size: The size in bytes. uint64.
        shared: The bytes of the range that lie in host memory. uint64.
        stream: The stream that the range serves. uint64.
        private: Whether the range belongs to a private pool. uint8.
        expandable: Whether the range was mapped into an expandable segment. uint8.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    address: NDArray[np.uint64]
    size: NDArray[np.uint64]
    shared: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    private: NDArray[np.uint8]
    expandable: NDArray[np.uint8]


def find_segments(
    events: EventBatch, numbers: NDArray[np.int64], trace: DeviceTrace, conf: str
) -> tuple[SegmentLifetimes, list[str]]:
    """Finds the ranges of reserved memory in a history.

    Args:
        events: The events of segments; other events are ignored.
        numbers: The events' numbers in the history.
        trace: The history.
        conf: The recorded configuration of the allocator.

    Returns:
        The ranges, and notes on what is uncertain about them.
    """
    begin, notes = _at_the_start(events, trace, conf)
    ranges = _Ranges(trace.event_count)
    for segment in begin:
        private = (segment.pool.first, segment.pool.second) != (0, 0)
        new = _Range(
            segment.address, segment.total_size, -1, segment.shared, segment.stream, private,
            segment.expandable,
        )  # fmt: skip
        ranges.take(new)
    columns = (numbers, events.action, events.address, events.size, events.shared, events.stream,
               (events.pool_first | events.pool_second) != 0)  # fmt: skip
    for number, action, address, size, shared, stream, private in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            mapped = action == Action.SEGMENT_MAP
            shared = min(shared, size)  # in a damaged history `shared` may exceed `size`
            ranges.take(_Range(address, size, number, shared, stream, private, mapped))
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            ranges.give_back(number, address, size)
    return ranges.lifetimes(), notes


def _at_the_start(
    events: EventBatch, trace: DeviceTrace, conf: str
) -> tuple[Sequence[_core.SegmentInfo], list[str]]:
    try:
        return trace.start(conf, _core.NEWEST_VERSION), []
    except InputError as error:
        taken = np.isin(events.action, [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])
        known = set(events.address[taken].tolist())
        rest = [segment for segment in trace.segments if segment.address not in known]
        return rest, [
            f"What was reserved before the first event is not known in full ({error}): the final "
            "segments that no event took are shown from the beginning."
        ]


class _Range(NamedTuple):
    """A reserved range."""

    address: int
    size: int
    start: int
    shared: int
    stream: int
    private: bool
    mapped: bool

    def part(self, begin: int, end: int) -> _Range:
        """Returns a part of the range. Its `shared` is proportional to its size."""
        shared = self.shared * (end - begin) // self.size
        return self._replace(address=begin, size=end - begin, shared=shared)


class _Ranges:
    """The ranges that are reserved now, sorted by address, and the released ranges."""

    def __init__(self, event_count: int) -> None:
        self._event_count = event_count
        self._now: list[_Range] = []
        self._rows: list[tuple[int, ...]] = []

    def take(self, new: _Range) -> None:
        if new.size:
            # A damaged history may reserve memory twice without a release in between. The old range
            # is released here, so that no two ranges overlap.
            self.give_back(new.start, new.address, new.size)
            insort(self._now, new)

    def give_back(self, event: int, address: int, size: int) -> None:
        first = max(bisect_left(self._now, (address,)) - 1, 0)
        place = first
        kept = []
        while place < len(self._now) and self._now[place].address < address + size:
            old = self._now[place]
            place += 1
            end = old.address + old.size
            low, high = max(old.address, address), min(end, address + size)
            if low >= high:
                kept.append(old)
                continue
            self._close(old.part(low, high), event)
            if old.address < low:
                kept.append(old.part(old.address, low))
            if high < end:
                kept.append(old.part(high, end))
        self._now[first:place] = kept

    def lifetimes(self) -> SegmentLifetimes:
        for one in self._now:
            self._close(one, self._event_count)
        self._rows.sort()
        columns = list(zip(*self._rows, strict=True)) or [()] * len(_TYPES)
        return SegmentLifetimes(
            *(np.array(column, dtype=kind) for column, kind in zip(columns, _TYPES, strict=True))
        )

    def _close(self, old: _Range, event: int) -> None:
        if event > old.start:
            about = (old.address, old.size, old.shared, old.stream, old.private, old.mapped)
            self._rows.append((old.start, event, *about))


_TYPES = (
    np.int64, np.int64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint8, np.uint8
)  # fmt: skip
