"""Replay a recorded history under any allocator, configuration, limit and GPU size."""

from plimsoll.replays.replay import AMPLE_MEMORY, replay
from plimsoll.replays.result import Difference, FirstOom, PeakBreakdown, ReplayResult, Replays
from plimsoll.simulator.allocator import AllocatorName

__all__ = [
    "AMPLE_MEMORY",
    "AllocatorName",
    "Difference",
    "FirstOom",
    "PeakBreakdown",
    "ReplayResult",
    "Replays",
    "replay",
]
