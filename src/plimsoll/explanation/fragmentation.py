"""Finds the free part of reserved memory, and the live blocks that keep it reserved."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB
from plimsoll.explanation.parts import Fragmentation, PinnedSegment
from plimsoll.explanation.pieces import free_bytes, is_partly_used
from plimsoll.explanation.state import ReplayedPast
from plimsoll.recordings.analysis.lines import LineShare

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll import _core
    from plimsoll.explanation.state import Past

_MOST_SHOWN = 5
_SMALL_REQUEST = MiB  # requests up to this size are served from the small pool


def find_fragmentation(past: Past, event: int, owner: Callable[[int, int], str]) -> Fragmentation:
    """Finds the free memory after an event, and the segments that live blocks keep reserved.

    Args:
        past: The states of the allocator, one after each event.
        event: The index of the event.
        owner: A function that returns the name of a live block, given its address and size.
    """
    segments, units = past.after(event), past.units(event)
    holes = [
        block.size for segment in segments for block in segment.blocks if block.state == "inactive"
    ]
    by_stream: Counter[int] = Counter()
    for segment in segments:
        if _is_default(segment):
            by_stream[segment.stream] += segment.total_size
    stream = by_stream.most_common(1)[0][0] if by_stream else 0
    hole = largest_hole(segments, lambda one: _is_default(one) and one.stream == stream)
    pinned = [unit for unit in units if is_partly_used(unit)]
    pinned.sort(key=lambda segment: -free_bytes(segment))
    return Fragmentation(
        event=event,
        free_bytes=sum(holes),
        holes=len(holes),
        largest_hole_bytes=hole,
        largest_request_bytes=_largest_request(past, event, stream, hole),
        movable_bytes=past.movable_bytes(event),
        pinned=[
            _pinned(segment, owner, has_address=past.has_recorded_addresses)
            for segment in pinned[:_MOST_SHOWN]
        ],
        pinned_segments=len(pinned),
    )


def largest_hole(
    segments: list[_core.SegmentInfo], counts: Callable[[_core.SegmentInfo], bool]
) -> int:
    """Returns the size of the largest free block outside the small pool; 0 if there is none.

    Only segments for which `counts` returns True are searched.
    """
    return max(
        (
            block.size
            for segment in segments
            if not segment.small and counts(segment)
            for block in segment.blocks
            if block.state == "inactive"
        ),
        default=0,
    )


def _is_default(segment: _core.SegmentInfo) -> bool:
    return segment.pool.first == 0 and segment.pool.second == 0


def _largest_request(past: Past, event: int, stream: int, hole: int) -> int | None:
    """Returns the size of the largest request that free memory on `stream` can serve.

    Returns None if `past` is not a replay, or if the allocator can move free memory.
    """
    if not isinstance(past, ReplayedPast) or past.moves:
        # Without a replay, plimsoll cannot test whether a request would be served. If the allocator
        # can move free memory, the sizes of the free pieces do not limit requests.
        return None
    if hole <= _SMALL_REQUEST:
        return 0

    def serves(size: int) -> bool:
        return past.is_served_from_cache(event, size, stream)

    least, most = _SMALL_REQUEST, hole  # find the largest request that, rounded, fits the hole
    while least < most:
        middle = (least + most + 1) // 2
        if past.round_request(middle) <= hole:
            least = middle
        else:
            most = middle - 1
    if least > _SMALL_REQUEST and serves(least):
        return least
    # A rule such as max_split_size keeps the hole from serving a request of `least` bytes. So a
    # binary search tries smaller requests.
    low, high = _SMALL_REQUEST, least
    while high - low > 512:
        middle = (low + high) // 2
        if serves(middle):
            low = middle
        else:
            high = middle
    return low if low > _SMALL_REQUEST else 0


def _pinned(
    segment: _core.SegmentInfo, owner: Callable[[int, int], str], *, has_address: bool
) -> PinnedSegment:
    bytes_of: Counter[str] = Counter()
    blocks_of: Counter[str] = Counter()
    for block in segment.blocks:
        if block.state != "inactive":
            name = owner(block.address, block.requested or block.size)
            bytes_of[name] += block.size
            blocks_of[name] += 1
    return PinnedSegment(
        address=segment.address if has_address else None,
        total_bytes=segment.total_size,
        free_bytes=free_bytes(segment),
        blocks=sum(blocks_of.values()),
        lines=[
            LineShare(name, size, blocks_of[name])
            for name, size in bytes_of.most_common(_MOST_SHOWN)
        ],
    )
