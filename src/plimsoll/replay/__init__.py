"""Replay a recorded history under any allocator, configuration, limit and GPU size."""

from plimsoll.replay.replay import replay
from plimsoll.replay.result import Difference, FirstOom, PeakBreakdown, ReplayResult

__all__ = ["Difference", "FirstOom", "PeakBreakdown", "ReplayResult", "replay"]
