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
    recording: Recording, lifetimes: Lifetimes, passes: Steps, is_of_line: NDArray[np.bool_]
) -> tuple[Recording, Recording] | None:
    """Returns a copy of a recording with its leak, and a copy without it.

    The first copy keeps the recorded frees. The second copy frees each leaked block at the end of
    the pass after the one that allocated the block. Until then a variable may rightly hold it. Both
    copies contain only the program's requests and frees, not the allocator's own events, so the
    copies differ only in their frees. Returns None if no block is leaked.

    Args:
        recording: The recording of one device.
        lifetimes: Its blocks.
        passes: The iterations of the loop, such as the program's steps.
        is_of_line: A mask of the blocks that the line allocates.
    """
    count = len(passes)
    made_in = np.searchsorted(passes.boundaries, lifetimes.start, side="right") - 1
    latest = passes.boundaries[np.clip(made_in + 2, 0, count)]
    is_inside = (made_in >= 0) & (made_in + 2 <= count)
    leaks = np.flatnonzero(is_of_line & is_inside & (lifetimes.end > latest))
    leaks = leaks[_grow_later(lifetimes, leaks, made_in[leaks], passes)]
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


def _grow_later(
    lifetimes: Lifetimes, leaks: NDArray[np.int64], made_in: NDArray[np.int64], passes: Steps
) -> NDArray[np.bool_]:
    """Returns a mask of `leaks`. The mask leaves out blocks that only the warm-up keeps.

    A line may rightly keep blocks of the warm-up, such as parameters. So for each call stack,
    plimsoll counts the blocks that the program keeps from each pass. The blocks from a pass of the
    warm-up count as leaked only if their number is at most the median of the later passes. Without
    call stacks, no block of the warm-up counts as leaked.

    Args:
        lifetimes: The blocks.
        leaks: The indices of the blocks.
        made_in: For each leaked block, the pass that allocated it.
        passes: The iterations of the loop.
    """
    warm, count = steps_to_warm_up(passes), len(passes)
    stack = lifetimes.stack[leaks]
    found: NDArray[np.bool_] = made_in >= warm
    if not lifetimes.stack.any():
        return found
    for each in np.unique(stack[~found]).tolist():
        kept = np.bincount(made_in[stack == each], minlength=count)
        usual = np.median(kept[warm : max(count - 1, warm + 1)])
        found |= (stack == each) & (kept[made_in] <= usual)
    return found


def _frees(allocations: EventBatch) -> EventBatch:
    """Returns the events that free each block: `free_requested`, then `free_completed`."""
    twice = allocations[np.repeat(np.arange(len(allocations)), 2)]
    action = np.tile([Action.FREE_REQUESTED, Action.FREE_COMPLETED], len(allocations))
    return replace(twice, action=action.astype(np.uint8))
