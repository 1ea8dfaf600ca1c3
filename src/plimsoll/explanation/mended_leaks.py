"""Edits a recorded history as if a leaking line had kept nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.explanation.edited_history import requests_alone
from plimsoll.recordings.analysis.leaks import steps_to_warm_up
from plimsoll.recordings.events import Action, EventBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.recording import Recording


def with_leak_mended(
    recording: Recording, lifetimes: Lifetimes, steps: Steps, is_of_line: NDArray[np.bool_]
) -> tuple[Recording, Recording] | None:
    """Returns two copies of a recording: one frees blocks as recorded, one frees leaked blocks.

    In the second copy, no block of the leaking line outlives the step after the one that
    allocated it; until then a variable may rightly hold the block. Steps of the warm-up are not
    changed. Both copies contain only the requests and frees of the program, not the allocator's
    own events. So they differ only in the frees. Returns None if no block needs an earlier free.

    Args:
        recording: The recording of one device.
        lifetimes: Its blocks.
        steps: The program's steps.
        is_of_line: A mask of the blocks that the line allocates.
    """
    count = len(steps)
    step = np.searchsorted(steps.boundaries, lifetimes.start, side="right") - 1
    leaves_time = (step >= steps_to_warm_up(steps)) & (step + 2 <= count)
    latest = steps.boundaries[np.clip(step + 2, 0, count)]
    leaks = np.flatnonzero(is_of_line & leaves_time & (lifetimes.end > latest))
    if not len(leaks):
        return None
    (trace,) = recording.devices
    events = trace.load()
    is_kept = np.ones(len(events), dtype=np.bool_)
    for ends in (lifetimes.end[leaks], lifetimes.completed[leaks]):
        is_kept[ends[ends < len(events)]] = False
    kept, frees = events[is_kept], _frees(events[lifetimes.start[leaks]])
    place = np.concatenate([np.flatnonzero(is_kept), np.repeat(latest[leaks], 2) - 0.5])
    mended = EventBatch.join([kept, frees])[np.argsort(place, kind="stable")]
    return (
        requests_alone(recording, events, "requests alone"),
        requests_alone(recording, mended, "without a leak"),
    )


def _frees(allocations: EventBatch) -> EventBatch:
    """Returns the events that free each block: `free_requested`, then `free_completed`."""
    twice = allocations[np.repeat(np.arange(len(allocations)), 2)]
    action = np.tile([Action.FREE_REQUESTED, Action.FREE_COMPLETED], len(allocations))
    return replace(twice, action=action.astype(np.uint8))
