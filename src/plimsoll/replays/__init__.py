"""Replay a recorded history under any allocator, configuration, limit and GPU size."""

from plimsoll.replays.parts import Difference, FirstOom, PeakBreakdown, ReplayResult
from plimsoll.replays.replay import AMPLE_MEMORY, replay
from plimsoll.replays.results import Replays

__all__ = [
    "AMPLE_MEMORY",
    "Difference",
    "FirstOom",
    "PeakBreakdown",
    "ReplayResult",
    "Replays",
    "replay",
]
