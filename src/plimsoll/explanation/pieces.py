"""Finds the units of memory that move or are released as a whole, and their free bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import GRANULE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll import _core

_MOST_GRANULES = 1 << 17  # 256 GiB, more than any card has


def granules(address: int, size: int) -> Iterator[tuple[int, int]]:
    """Splits a range into granules, each with its address and size.

    A range larger than any card stays whole: a damaged recording may have one.
    """
    if size > _MOST_GRANULES * GRANULE:
        yield address, size
        return
    end = address + size
    for begin in range(address, end, GRANULE):
        yield begin, min(GRANULE, end - begin)


def is_partly_used(segment: _core.SegmentInfo) -> bool:
    """Whether a segment has free and live parts."""
    return len({block.state == "inactive" for block in segment.blocks}) == 2


def free_bytes(segment: _core.SegmentInfo) -> int:
    """Returns the free bytes of a segment."""
    return sum(block.size for block in segment.blocks if block.state == "inactive")


def wholly_free_bytes(segment: _core.SegmentInfo) -> int:
    """Returns the size of a wholly free segment; 0 if a live block is in it."""
    return segment.total_size if free_bytes(segment) == segment.total_size else 0
