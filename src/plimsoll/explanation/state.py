"""Finds the allocator's state after any event: its segments and blocks.

PyTorch's allocator follows known rules, so a replay up to the event gives its state, and further
requests can be tried in that state. If the replay differs from the recorded run, or another
allocator was recorded, the state is rebuilt from the recorded events. The state under a smaller
limit always comes from a replay, whichever allocator was recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.base.units import GRANULE
from plimsoll.engine.replays.parts import PeakBreakdown
from plimsoll.engine.replays.replay import AMPLE_MEMORY
from plimsoll.explanation.pieces import granules, wholly_free_bytes
from plimsoll.recordings.events import Action, EventBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.recordings.recording import DeviceTrace

_UNUSED_ADDRESS = 1 << 62
_ALIGNMENT = 512


class Past(ABC):
    """A history, with the allocator's state after each event.

    Attributes:
        trace: The events.
        peak: The parts of reserved memory at its peak.
        peak_allocated_bytes: The most bytes in live blocks, rounding included if it is known.
        peak_dedicated_bytes: The most bytes reserved on the card.
        peak_shared_bytes: The bytes of `peak` that are host memory, which the GPU uses directly.
        num_alloc_retries: The number of requests for which PyTorch had to release cached memory;
            None for unknown.
        is_exact: Whether all these figures are exact to the byte.
        is_what_if: Whether the states are those under a given limit instead of the recorded ones.
        has_recorded_addresses: Whether blocks have their recorded addresses.
        moves: Whether the allocator moves free memory to other addresses where it is needed, as the
            elastic allocator does.
        max_split_size: The configured `max_split_size_mb`, in bytes; None without one.
        limits: The recorded limits on the device's reserved bytes (`Recording.limits_of`).

    Args:
        trace: The events.
        allocator: The recorded allocator.
        conf: PyTorch's configuration, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        version: The version of PyTorch.
    """

    trace: DeviceTrace
    peak: PeakBreakdown
    peak_allocated_bytes: int
    peak_dedicated_bytes: int
    peak_shared_bytes: int
    num_alloc_retries: int | None
    is_exact: bool
    is_what_if = False
    has_recorded_addresses = True
    moves: bool
    max_split_size: int | None
    limits: Sequence[int | None] = ()

    def __init__(self, trace: DeviceTrace, allocator: str, conf: str, version: str) -> None:
        self.trace = trace
        self.moves = allocator == "elastic"
        self._is_torch = allocator == "native"
        self._config = _core.AllocatorConfig.parse(conf, version)
        self.max_split_size = self._config.max_split_size if self._is_torch else None

    @abstractmethod
    def after(self, event: int) -> list[_core.SegmentInfo]:
        """Returns the segments after an event; for -1, those before the first event."""

    @abstractmethod
    def units(self, event: int) -> list[_core.SegmentInfo]:
        """Returns the units of memory after an event; a unit moves, or is released, as a whole."""

    @abstractmethod
    def movable_bytes(self, event: int) -> int | None:
        """Returns the free bytes that the allocator can move; None if it never moves memory."""

    def breakdown(self, event: int) -> PeakBreakdown:
        """Returns the parts of reserved memory after an event."""
        reserved = active = pending = rounding = cached = 0
        for unit in self.units(event):
            free = 0
            for block in unit.blocks:
                if block.state == "inactive":
                    free += block.size
                    continue
                active += block.size
                rounding += max(block.size - block.requested, 0)
                pending += block.size if block.state != "active_allocated" else 0
            reserved += unit.total_size
            # PyTorch's expandable segments can release any free part.
            can_shrink = self._is_torch and unit.expandable
            cached += free if can_shrink or free == unit.total_size else 0
        return PeakBreakdown(
            event=event,
            reserved_bytes=reserved,
            requested_bytes=active - rounding,
            rounding_bytes=rounding,
            split_bytes=reserved - active - cached,
            cached_bytes=cached,
            pending_free_bytes=pending,
        )

    def failures(self) -> list[int]:
        """Returns the events at which requests failed."""
        return recorded_failures(self.trace)

    def round_request(self, size: int) -> int:
        """Returns the size in bytes of the block that serves a request."""
        if self._is_torch:
            return self._config.round_request(size)
        return -(-size // _ALIGNMENT) * _ALIGNMENT

    def driver_request(self, size: int) -> int:
        """Returns the bytes to request from the driver if no free block serves a request."""
        if self._is_torch:
            return self._config.segment_size(size)
        return -(-size // GRANULE) * GRANULE if self.moves else size


class ReplayedPast(Past):
    """The allocator's states in a replay.

    PyTorch's allocator is replayed under the recorded limit or a given one. Other allocators are
    replayed only under a given limit.

    Args:
        trace: The events.
        start: The segments before the first event.
        replayed: The result of replaying the events.
        recorded_allocator: The allocator of the recorded events.
    """

    def __init__(
        self,
        trace: DeviceTrace,
        start: list[_core.SegmentInfo],
        replayed: ReplayResult,
        recorded_allocator: str,
    ) -> None:
        super().__init__(trace, replayed.allocator, replayed.conf, replayed.version)
        self.peak_allocated_bytes = replayed.peak_allocated_bytes
        self.peak_dedicated_bytes = replayed.peak.reserved_bytes
        self.peak_shared_bytes = 0
        self.num_alloc_retries = replayed.num_alloc_retries
        self.is_exact = self.has_recorded_addresses = replayed.matches_recording is True
        self.is_what_if = replayed.limit_source == "given" and not self.is_exact
        self._start = start
        self._replayed = replayed
        self._recorded_allocator = recorded_allocator
        self.peak = self._with_movable(replayed.peak)

    def after(self, event: int) -> list[_core.SegmentInfo]:
        """See `Past.after`."""
        return self._run(event).segments()

    def units(self, event: int) -> list[_core.SegmentInfo]:
        """See `Past.units`. Returns granules if the allocator moves memory."""
        segments = self.after(event)
        return [one for s in segments for one in _in_granules(s)] if self.moves else segments

    def failures(self) -> list[int]:
        """See `Past.failures`.

        Under a given limit, returns the recorded failures that happen in the replay too. If the
        replay ends early because a request fails, returns that request too, even if the recorded
        run served it.
        """
        if not self.is_what_if:
            return super().failures()
        run = self._start_again()
        found: list[int] = []
        served = passed = 0
        for batch in self.trace.batches():
            begin = 0
            for row in np.flatnonzero(batch.action == Action.OOM).tolist():
                run.feed(batch[begin : row + 1].to_core())
                if run.stopped:
                    break
                if run.avoided_ooms == served:
                    found.append(passed + row)
                begin, served = row + 1, run.avoided_ooms
            run.feed(batch[begin:].to_core())
            if run.stopped:
                return [*found, run.events]
            passed += len(batch)
        return found

    def movable_bytes(self, event: int) -> int | None:
        """See `Past.movable_bytes`."""
        if not self.moves:
            return None
        return sum(map(wholly_free_bytes, self.units(event)))

    def _with_movable(self, peak: PeakBreakdown) -> PeakBreakdown:
        """Counts the peak's movable free bytes as cached, and its other free bytes as fragments.

        Returns the peak unchanged if the allocator moves no memory.
        """
        movable = self.movable_bytes(peak.event)
        if movable is None:
            return peak
        free = peak.cached_bytes + peak.split_bytes
        cached = min(movable, free)
        return replace(peak, cached_bytes=cached, split_bytes=free - cached)

    def is_served_from_cache(self, event: int, size: int, stream: int) -> bool:
        """Returns whether free memory would serve a request that follows `event`."""
        run = self._run(event)
        before = _reserved(run.segments())
        columns = {
            "action": np.zeros(1),
            "address": np.full(1, _UNUSED_ADDRESS),
            "size": np.full(1, size),
            "stream": np.full(1, stream, dtype=np.uint64),
            **dict.fromkeys(("time_us", "pool_first", "pool_second"), np.zeros(1)),
        }
        run.feed(EventBatch.of(columns).to_core())
        return not run.stopped and _reserved(run.segments()) <= before

    def _start_again(self) -> _core.Replay:
        """Starts a new replay, which has not replayed any event yet."""
        replayed = self._replayed
        compare = replayed.matches_recording is True
        run = _core.Replay(
            replayed.allocator,
            replayed.conf,
            replayed.version,
            replayed.limit_bytes,
            AMPLE_MEMORY,
            None,
            compare,
            _core.Completion.recorded,
            None if compare else list(replayed.emptied_caches),
            self.trace.device,
            _core.RecordedAllocator[self._recorded_allocator],
        )
        if self._start:
            run.restore(self._start)
        return run

    def _run(self, event: int) -> _core.Replay:
        run = self._start_again()
        left = event + 1
        for batch in self.trace.batches():
            if left <= 0 or run.stopped:
                break
            run.feed(batch[:left].to_core())
            left -= len(batch)
        return run


def recorded_failures(trace: DeviceTrace) -> list[int]:
    """Returns the numbers of the `oom` events: requests that failed."""
    found: list[int] = []
    passed = 0
    for batch in trace.batches():
        found += (np.flatnonzero(batch.action == Action.OOM) + passed).tolist()
        passed += len(batch)
    return found


def _in_granules(segment: _core.SegmentInfo) -> list[_core.SegmentInfo]:
    """Splits a segment into the units that move as a whole."""
    found = []
    blocks = deque(segment.blocks)
    for begin, size in granules(segment.address, segment.total_size):
        parts = []
        while blocks and blocks[0].address < begin + size:
            block = blocks[0]
            low, high = max(block.address, begin), block.address + block.size
            length = min(high, begin + size) - low
            parts.append(_core.BlockInfo(low, length, block.requested, block.state))
            if high > begin + size:
                break
            blocks.popleft()
        of = segment
        found.append(
            _core.SegmentInfo(begin, size, of.stream, of.pool, of.small, of.expandable, 0, parts)
        )
    return found


def _reserved(segments: list[_core.SegmentInfo]) -> int:
    return sum(segment.total_size for segment in segments)
