"""Explains failed requests: their sizes, and why the free memory could not serve them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.explanation.fragmentation import largest_hole
from plimsoll.explanation.parts import OomReason, OutOfMemory
from plimsoll.explanation.pieces import free_bytes, wholly_free_bytes
from plimsoll.recordings.events import Action
from plimsoll.recordings.recording import limit_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll import _core
    from plimsoll.explanation.state import Past
    from plimsoll.recordings.events import EventBatch

MOST_EXPLAINED = 5


def explain_failure(
    past: Past, event: int, limit: int | None, line_of: Callable[[int], str]
) -> OutOfMemory:
    """Explains why a request failed.

    Args:
        past: The states of the allocator, one after each event.
        event: The failed request's event: an `oom`, or a request that does not fit under a limit.
        limit: The most that the program could reserve, if known.
        line_of: A function that returns the source line of a stack, given its number.
    """
    failed = _event(past, event)
    recorded = failed.action[0] == Action.OOM
    asked = int(failed.size[0]) if recorded else past.round_request(int(failed.size[0]))
    device_free = int(failed.address[0]) if recorded else None
    stream, pool = int(failed.stream[0]), (int(failed.pool_first[0]), int(failed.pool_second[0]))
    before, after = past.after(_last_of_program(past, event)), past.after(event)
    reserved = sum(segment.total_size for segment in after)
    free = sum(map(free_bytes, after))
    active = reserved - free
    blocks = [block for segment in after for block in segment.blocks]
    allocated = sum(block.size for block in blocks if block.state == "active_allocated")
    movable, held = _movable(past, event, pool) if past.moves else (0, 0)
    needed = past.driver_request(max(asked - movable, 1))
    refused = limit is not None and reserved + needed > limit
    by_limit = refused or device_free is None or device_free >= needed
    below = reserved + needed
    most = max(past.peak.reserved_bytes, reserved)
    limit_range: tuple[int, int] | None = None
    if by_limit and recorded:
        limit_range = min(most, below - 1), below
        if limit is None and (told := limit_within(past.limits, *limit_range)) is not None:
            limit_range = told, told + 1
    known = limit if device_free is None or by_limit else reserved + device_free
    if known is None and limit_range is not None and limit_range[1] - limit_range[0] == 1:
        known = limit_range[0]

    def is_own(segment: _core.SegmentInfo) -> bool:
        return segment.stream == stream and _pool(segment) == pool

    reason: OomReason
    if free < asked and (known is None or active + asked > known):
        reason = "too_little"
    elif past.moves:
        room = 0 if known is None else max(known - reserved, 0)
        reason = "other_pools" if free - held + room < asked else "fragmentation"
    else:
        reason = _reason_of_holes(past, after, asked, (stream, pool))
    stack = int(failed.stack[0])
    return OutOfMemory(
        event=event,
        recorded=bool(recorded),
        asked_bytes=asked,
        needed_bytes=needed,
        at=line_of(stack) if stack else None,
        cause="limit" if by_limit else "card",
        reason=reason,
        device_free_bytes=device_free,
        limit_bytes=limit,
        limit_range_bytes=limit_range,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        free_bytes=free,
        largest_hole_bytes=largest_hole(after, is_own),
        returned_bytes=max(0, sum(segment.total_size for segment in before) - reserved),
        missing_bytes=None if known is None else max(0, active + asked - known),
    )


def _movable(past: Past, event: int, pool: tuple[int, int]) -> tuple[int, int]:
    """Returns the free bytes that can move to `pool`, and those that other private pools hold."""
    movable = held = 0
    for unit in past.units(event):
        if _pool(unit) in (pool, (0, 0)):
            movable += wholly_free_bytes(unit)
        else:
            held += free_bytes(unit)
    return movable, held


def _pool(segment: _core.SegmentInfo) -> tuple[int, int]:
    return segment.pool.first, segment.pool.second


def _last_of_program(past: Past, event: int) -> int:
    """Returns the index of the last event before `event` that the program caused; -1 if none.

    The program causes requests and frees; all other events are the allocator's own.
    """
    last, passed = -1, 0
    for batch in past.trace.batches():
        actions = batch.action[: max(event - passed, 0)]
        rows = np.flatnonzero((actions <= Action.FREE_COMPLETED) | (actions == Action.OOM))
        last = int(rows[-1]) + passed if len(rows) else last
        passed += len(batch)
        if passed > event:
            break
    return last


def _event(past: Past, event: int) -> EventBatch:
    for batch in past.trace.batches():
        if event < len(batch):
            return batch[event : event + 1]
        event -= len(batch)
    raise IndexError(event)


def _reason_of_holes(
    past: Past, segments: list[_core.SegmentInfo], asked: int, own: tuple[int, tuple[int, int]]
) -> OomReason:
    """Returns why no free block served a request, if the allocator moves no memory.

    Args:
        past: The states of the allocator.
        segments: The segments when the request failed.
        asked: The bytes that the request needs in a row.
        own: The stream and the pool of the request.
    """
    stream, pool = own

    def is_in_pool(segment: _core.SegmentInfo) -> bool:
        return _pool(segment) == pool

    if largest_hole(segments, lambda each: each.stream == stream and is_in_pool(each)) >= asked:
        # A free block is large enough. Either max_split_size forbids its use, or the replay differs
        # from the recorded run.
        return "unknown" if past.max_split_size is None else "max_split_size"
    if largest_hole(segments, is_in_pool) >= asked:
        return "other_streams"
    if largest_hole(segments, lambda _: True) >= asked:
        return "other_pools"
    return "fragmentation"
