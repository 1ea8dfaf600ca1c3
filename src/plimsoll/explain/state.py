"""The allocator's state after any event: its segments and blocks.

PyTorch's allocator is a matter of rules, so its state is had by replaying up to the event, and
requests can be tried there. Where a replay is not what happened, above all under another allocator,
the state is put together from the recorded events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.trace import EventBatch

if TYPE_CHECKING:
    from plimsoll.replay import PeakBreakdown, ReplayResult
    from plimsoll.trace import DeviceTrace

_AMPLE_MEMORY = 1 << 40
_UNUSED_ADDRESS = 1 << 62


class Past(ABC):
    """A history that can be gone back to.

    Attributes:
        trace: The events.
        peak: Where the bytes were when the most was reserved.
        peak_allocated_bytes: The most in live blocks, as far as it is known beyond their rounding.
        peak_dedicated_bytes: The most reserved on the card.
        peak_shared_bytes: What of `peak` was in shared memory.
        num_alloc_retries: Requests for which cached memory had to be returned; None for unknown.
        is_exact: Whether all of this is to the byte what happened.
        moves: Whether free pieces go to where they are needed, as under the elastic allocator.
        max_split_size: As configured.
    """

    trace: DeviceTrace
    peak: PeakBreakdown
    peak_allocated_bytes: int
    peak_dedicated_bytes: int
    peak_shared_bytes: int
    num_alloc_retries: int | None
    is_exact: bool
    moves: bool
    max_split_size: int | None

    @abstractmethod
    def after(self, event: int) -> list[_core.SegmentInfo]:
        """The segments after an event; -1 is before the first."""

    @abstractmethod
    def units(self, event: int) -> list[_core.SegmentInfo]:
        """Likewise, in what can only move, or go back to the driver, as a whole."""

    @abstractmethod
    def movable_bytes(self, event: int) -> int | None:
        """What is free after an event in pieces that can move; None where memory does not move."""

    @abstractmethod
    def round_request(self, size: int) -> int:
        """What a request takes of a segment."""

    @abstractmethod
    def driver_request(self, size: int) -> int:
        """What the driver is asked for, where nothing free serves a request."""


class ReplayedPast(Past):
    """What PyTorch's allocator did, by doing it again.

    Args:
        trace: The events.
        start: The segments before the first.
        replayed: What their replay under the recorded settings found.
    """

    moves = False

    def __init__(
        self, trace: DeviceTrace, start: list[_core.SegmentInfo], replayed: ReplayResult
    ) -> None:
        self.trace = trace
        self.peak = replayed.peak
        self.peak_allocated_bytes = replayed.peak_allocated_bytes
        self.peak_dedicated_bytes = replayed.peak.reserved_bytes
        self.peak_shared_bytes = 0
        self.num_alloc_retries = replayed.num_alloc_retries
        self.is_exact = replayed.matches_recording is True
        self._start = start
        self._replayed = replayed
        self._config = _core.AllocatorConfig.parse(replayed.conf, replayed.version)
        self.max_split_size = self._config.max_split_size

    def after(self, event: int) -> list[_core.SegmentInfo]:
        """See `Past.after`."""
        return self._run(event).segments()

    def units(self, event: int) -> list[_core.SegmentInfo]:
        """See `Past.units`."""
        return self.after(event)

    def movable_bytes(self, event: int) -> int | None:  # noqa: ARG002
        """See `Past.movable_bytes`."""
        return None

    def round_request(self, size: int) -> int:
        """See `Past.round_request`."""
        return self._config.round_request(size)

    def driver_request(self, size: int) -> int:
        """See `Past.driver_request`."""
        return self._config.segment_size(size)

    def is_served_from_cache(self, event: int, size: int, stream: int) -> bool:
        """Whether a request after `event` would get its memory without asking the driver."""
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

    def _run(self, event: int) -> _core.Replay:
        run = _core.Replay(
            "native",
            self._replayed.conf,
            self._replayed.version,
            self._replayed.limit_bytes,
            _AMPLE_MEMORY,
            None,
            True,
            "recorded",
            None,
            self.trace.device,
        )
        if self._start:
            run.restore(self._start)
        left = event + 1
        for batch in self.trace.batches():
            if left <= 0 or run.stopped:
                break
            run.feed(batch[:left].to_core())
            left -= len(batch)
        return run


def _reserved(segments: list[_core.SegmentInfo]) -> int:
    return sum(segment.total_size for segment in segments)
