"""Extracts figures from a history, one stretch of events at a time, to save host memory.

Each class takes the stretches one after another by `add`, and afterwards returns its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.analysis.lifetimes import Lifetimes
from plimsoll.recordings.analysis.lines import source_line, source_lines
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.analysis.stretches import Stretch
    from plimsoll.recordings.events import EventBatch
    from plimsoll.recordings.recording import DeviceTrace

SPANS = 240
"""The number of time spans of each rank in the heat map of all ranks."""
_RESERVES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_RETURNS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Failure:
    """The first request that failed.

    Attributes:
        event: The event's number.
        step: The number of steps completed before it; None if no steps are known.
        time_us: Microseconds since the epoch.
        line: The requesting line, "file:line function"; None without call stacks.
        asked_bytes: The size of the request.
    """

    event: int
    step: int | None
    time_us: int
    line: str | None
    asked_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Allocated bytes over a rank's own time, in `SPANS` equal spans.

    If the recording has no times, the numbers of the events serve as times.

    Attributes:
        begin_us: The time of the first event, in microseconds since the epoch.
        end_us: The latest time of all events, in microseconds since the epoch.
        most_bytes: The most bytes that were live in each span. int64.
    """

    begin_us: int
    end_us: int
    most_bytes: NDArray[np.int64]


class Peak:
    """The peak of live bytes, and its blocks.

    Attributes:
        bytes: The live bytes at the peak.
        blocks: The live blocks at the peak.
    """

    def __init__(self) -> None:
        self.bytes = -1
        self.blocks = Lifetimes.none(0)

    def add(self, stretch: Stretch) -> None:
        """Adds the next stretch of events."""
        place = int(stretch.level.argmax())
        most = int(stretch.level[place])
        if most > self.bytes:
            event = stretch.first + place
            self.bytes = most
            self.blocks = _live_at(stretch, np.array([event]))


class LivingBlocks:
    """Collects the blocks that are live after at least one of the given events.

    Args:
        events: The numbers of the events.
    """

    def __init__(self, events: NDArray[np.int64]) -> None:
        self._events = np.unique(events)
        self._found: list[Lifetimes] = []

    def add(self, stretch: Stretch) -> None:
        """Adds the next stretch of events."""
        if stretch.first == 0:
            self._found.append(_live(stretch.carried, self._events))
        self._found.append(_live(stretch.began, self._events))

    @property
    def blocks(self) -> Lifetimes:
        """Returns all blocks in the order of the history."""
        return Lifetimes.join(self._found)


def _live_at(stretch: Stretch, events: NDArray[np.int64]) -> Lifetimes:
    return Lifetimes.join([_live(stretch.carried, events), _live(stretch.began, events)])


def _live(blocks: Lifetimes, events: NDArray[np.int64]) -> Lifetimes:
    return blocks[np.searchsorted(events, blocks.end) > np.searchsorted(events, blocks.start)]


class Lines:
    """Collects the source lines of all blocks; without call stacks, the blocks' sizes.

    Args:
        trace: The history. Its `frames` returns the call stack for a stack number.
    """

    def __init__(self, trace: DeviceTrace) -> None:
        self._trace = trace
        self._stacks = np.zeros(0, dtype=np.uint32)
        self._sizes = np.zeros(0, dtype=np.uint64)

    def add(self, stretch: Stretch) -> None:
        """Adds the next stretch of events."""
        parts = [stretch.began, *([stretch.carried] if stretch.first == 0 else [])]
        self._stacks = np.unique(np.concatenate([self._stacks, *(one.stack for one in parts)]))
        if not self._stacks.any():
            self._sizes = np.unique(np.concatenate([self._sizes, *(one.size for one in parts)]))

    def table(self) -> LineTable:
        """Returns the collected lines."""
        if self._stacks.any():
            numbers, names = source_lines(self._stacks, self._trace.frames)
            return LineTable("stack", self._stacks, numbers, names)
        names = [f"blocks of {format_size(int(size))}" for size in self._sizes]
        return LineTable("size", self._sizes, np.arange(len(names)), names)


@dataclass(frozen=True)
class LineTable:
    """The source lines of a history, with a table that finds the line of a block.

    Attributes:
        told_by: The attribute of `Lifetimes` that determines a block's line: "stack" or "size".
        values: All values of this attribute, sorted.
        numbers: For each of `values`, the index of its line in `names`. int64.
        names: The name of each line, "file:line function"; without call stacks "blocks of SIZE".
    """

    told_by: str
    values: NDArray[np.uint32] | NDArray[np.uint64]
    numbers: NDArray[np.int64]
    names: list[str]

    def of(self, blocks: Lifetimes) -> NDArray[np.int64]:
        """Returns the line of each block, as an index into `names`."""
        if not len(blocks):
            return np.zeros(0, dtype=np.int64)
        found: NDArray[np.int64] = self.numbers[
            np.searchsorted(self.values, getattr(blocks, self.told_by))
        ]
        return found


class InSteps:
    """Finds the least live bytes of each step, and the number of requests in it.

    Args:
        steps: The steps.
        event_count: The number of events in the history.
    """

    def __init__(self, steps: Steps, event_count: int) -> None:
        bounds = steps.boundaries
        inner = bounds[1:-1] if len(steps) > 2 else bounds[:-1]
        self._bounds = bounds
        self._inner = inner[inner < event_count]
        self._least = np.full(len(self._inner), _NEVER)
        self._allocations = np.zeros(len(steps), dtype=np.int64)

    def add(self, stretch: Stretch) -> None:
        """Adds the next stretch of events."""
        if len(self._allocations):
            self._allocations += np.diff(np.searchsorted(stretch.began.start, self._bounds))
        first, last = np.searchsorted(self._inner, (stretch.first, stretch.last - 1), side="right")
        # The step in which this stretch begins, and each step that begins later in the stretch.
        numbers = np.arange(max(first - 1, 0), last)
        if len(numbers):
            cuts = np.maximum(self._inner[numbers] - stretch.first, 0)
            least = np.minimum.reduceat(stretch.level, cuts)
            self._least[numbers] = np.minimum(self._least[numbers], least)

    @property
    def kept_bytes(self) -> int | None:
        """Returns the bytes that stay live throughout a step; None without steps.

        For each step this is the smallest number of live bytes. The result is the median of these.
        """
        return int(np.median(self._least)) if len(self._least) else None

    @property
    def allocations(self) -> float | None:
        """Returns the median number of allocations in a step; None for fewer than three steps.

        The first and the last step are not counted.
        """
        if len(self._allocations) < 3:
            return None
        return float(np.median(self._allocations[1:-1]))


class Reserved:
    """Finds the peak of reserved bytes, and the first request that failed.

    The peak is computed from the events of segments, and from the final segments if the recording
    has them.

    Args:
        trace: The history of the events.
        steps: The program's steps.

    Attributes:
        failure: The first request that failed.
    """

    def __init__(self, trace: DeviceTrace, steps: Steps) -> None:
        self.failure: Failure | None = None
        self._trace, self._steps = trace, steps
        self._now = self._least = 0
        self._most: list[int] = []  # the most reserved bytes in each stretch
        self._says_so = False

    def add(self, stretch: Stretch, events: EventBatch) -> None:
        """Adds the next stretch of events."""
        rare = np.flatnonzero(events.action >= Action.SEGMENT_ALLOC)
        action, size = events.action[rare], events.size[rare].astype(np.int64)
        sign = np.isin(action, _RESERVES).astype(np.int64) - np.isin(action, _RETURNS)
        self._says_so = self._says_so or bool(sign.any())
        change = np.zeros(len(events), dtype=np.int64)
        change[rare] = np.where(sign == 0, 0, sign * size)
        level = self._now + np.cumsum(change)
        self._most.append(int(level.max()))
        self._least = min(self._least, int(level.min()))
        self._now = int(level[-1])
        failed = rare[action == Action.OOM]
        if self.failure is None and len(failed):
            self.failure = self._failure(events, int(failed[0]), stretch.first)

    @property
    def most_bytes(self) -> int | None:
        """Returns the most reserved bytes; None if no events or segments show reserved memory."""
        if self._trace.segments:
            final = sum(segment.total_size for segment in self._trace.segments)
            return max(self._most) + final - self._now
        return max(self._most) - self._least if self._says_so else None

    def _failure(self, events: EventBatch, row: int, first: int) -> Failure:
        stack = int(events.stack[row])
        step = int(np.searchsorted(self._steps.boundaries, first + row, side="right")) - 1
        return Failure(
            event=first + row,
            step=max(step, 0) if len(self._steps) else None,
            time_us=int(events.time_us[row]),
            line=source_line(self._trace.frames(stack)) if stack else None,
            asked_bytes=int(events.size[row]),
        )


class TimelineInTheMaking:
    """Collects allocated bytes over time.

    Args:
        begin_us: The time of the first event.
        end_us: The latest time of all events.
        event_count: The number of events in the history. The event's number serves as the time if
            the recording has no times.
    """

    def __init__(self, begin_us: int, end_us: int, event_count: int) -> None:
        self._has_clock = end_us > begin_us
        begin, end = (begin_us, end_us) if self._has_clock else (0, event_count - 1)
        self._begin, self._end, self._now = begin, end, begin
        self._edges = begin + (end - begin) * np.arange(SPANS) // SPANS
        self._most = np.full(SPANS, -1, dtype=np.int64)
        self._level: int | None = None

    def add(self, stretch: Stretch, events: EventBatch) -> None:
        """Adds the next stretch of events."""
        time = np.arange(stretch.first, stretch.last)
        if self._has_clock:
            time = np.maximum(np.maximum.accumulate(events.time_us), self._now)
        level = stretch.level
        # The bytes that are already live when a span begins also belong to that span.
        is_new = (self._edges > self._now) | (self._level is None)
        begins = np.flatnonzero(is_new & (self._edges <= time[-1]))
        places = np.searchsorted(time, self._edges[begins])
        before = int(level[0]) if self._level is None else self._level
        self._most[begins] = np.where(places > 0, level[np.maximum(places - 1, 0)], before)
        span = np.searchsorted(self._edges, time, side="right") - 1
        cuts = np.flatnonzero(np.diff(span, prepend=-1))
        most = np.maximum.reduceat(level, cuts)
        self._most[span[cuts]] = np.maximum(self._most[span[cuts]], most)
        self._now, self._level = int(time[-1]), int(level[-1])

    @property
    def timeline(self) -> Timeline:
        """Returns the whole timeline."""
        return Timeline(self._begin, self._end, self._most)
