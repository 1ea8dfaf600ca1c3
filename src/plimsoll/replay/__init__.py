"""Replay a recorded history under any allocator, configuration, limit and GPU size."""

from plimsoll.replay.replay import AllocatorName, replay
from plimsoll.replay.result import Difference, FirstOom, PeakBreakdown, ReplayResult, Replays

__all__ = [
    "AllocatorName",
    "Difference",
    "FirstOom",
    "PeakBreakdown",
    "ReplayResult",
    "Replays",
    "replay",
]
