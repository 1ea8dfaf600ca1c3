"""The allocator's state after any event: its segments and blocks, by replaying up to there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.trace import EventBatch

if TYPE_CHECKING:
    from plimsoll.replay import ReplayResult
    from plimsoll.trace import DeviceTrace

_AMPLE_MEMORY = 1 << 40
_UNUSED_ADDRESS = 1 << 62


@dataclass(frozen=True)
class Past:
    """A history that can be gone back to.

    Attributes:
        trace: The events.
        start: The segments before the first.
        replayed: What their replay under the recorded settings found.
    """

    trace: DeviceTrace
    start: list[_core.SegmentInfo]
    replayed: ReplayResult

    @property
    def config(self) -> _core.AllocatorConfig:
        """The recorded settings."""
        return _core.AllocatorConfig.parse(self.replayed.conf, self.replayed.version)

    def after(self, event: int) -> list[_core.SegmentInfo]:
        """The segments after an event; -1 is before the first."""
        return self._run(event).segments()

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
            self.replayed.conf,
            self.replayed.version,
            self.replayed.limit_bytes,
            _AMPLE_MEMORY,
            None,
            True,
            "recorded",
            None,
            self.trace.device,
        )
        if self.start:
            run.restore(self.start)
        left = event + 1
        for batch in self.trace.batches():
            if left <= 0 or run.stopped:
                break
            run.feed(batch[:left].to_core())
            left -= len(batch)
        return run


def _reserved(segments: list[_core.SegmentInfo]) -> int:
    return sum(segment.total_size for segment in segments)
