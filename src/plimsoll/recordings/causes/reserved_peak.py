"""Finds what reserved memory consists of at its peak, for the recognisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.causes.cause import Reserved
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes

_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def reserved_change(action: NDArray[np.uint8], size: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the bytes that each event takes from the driver; negative if it releases them."""
    change = np.where(np.isin(action, _TAKES), size.astype(np.int64), 0)
    change[np.isin(action, _GIVES)] = -size[np.isin(action, _GIVES)].astype(np.int64)
    return change


def reserved_peak(
    action: NDArray[np.uint8],
    size: NDArray[np.uint64],
    stream: NDArray[np.uint64],
    blocks: Lifetimes,
    rounded: NDArray[np.uint64],
) -> Reserved:
    """Returns what reserved memory consists of at its peak.

    Args:
        action: The codes of the events.
        size: The bytes of the events.
        stream: The streams of the events.
        blocks: The blocks of these events.
        rounded: The bytes that each block takes, rounding included.
    """
    change = reserved_change(action, size)
    level = np.cumsum(change)
    if not len(level):
        return Reserved(0, 0)
    event = int(level.argmax())
    held = (blocks.start <= event) & (blocks.completed > event)
    pending = held & (blocks.end <= event)
    taken = np.flatnonzero(change[: event + 1])
    streams, which = np.unique(stream[taken], return_inverse=True)
    of_stream = np.bincount(which, change[taken], len(streams)).astype(np.int64)
    in_use = blocks.stream[held | (blocks.start > event)]
    is_idle = (of_stream > 0) & ~np.isin(streams, in_use)
    return Reserved(
        bytes=int(level[event]),
        excess_bytes=max(0, int(level[event]) - _most_taken(blocks, rounded, event)),
        pending_bytes=int(rounded[pending].sum()),
        idle_streams=int(is_idle.sum()),
        idle_stream_bytes=int(of_stream[is_idle].sum()),
    )


def _most_taken(blocks: Lifetimes, rounded: NDArray[np.uint64], event: int) -> int:
    """Returns the most bytes that blocks took at any time up to the peak of reserved memory.

    Reserved memory reaches this peak at `event`. The request that follows `event` counts too,
    because the allocator reserves memory just before it serves the request that needs the memory.
    The maximum may also lie at an earlier time: if the last segment is small, blocks may have taken
    more of the other segments before.
    """
    served = int(blocks.start[blocks.start > event].min(initial=blocks.event_count))
    begin = np.maximum(blocks.start, 0)
    begun = np.flatnonzero(begin <= served)
    ended = begun[blocks.completed[begun] <= served]
    change = np.zeros(served + 1, dtype=np.int64)
    np.add.at(change, begin[begun], rounded[begun].astype(np.int64))
    np.subtract.at(change, blocks.completed[ended], rounded[ended].astype(np.int64))
    return int(np.cumsum(change).max(initial=0))
