"""Splits memory into the units that an allocator moves or releases. Counts their free bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import GRANULE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll import _core

_MOST_GRANULES = 1 << 17  # 256 GiB


def granules(address: int, size: int) -> Iterator[tuple[int, int]]:
    """Splits a range of addresses into granules of 2 MiB. Yields the address and size of each.

    A range of more than 256 GiB is yielded whole. A damaged recording may have a range far larger
    than any card, and splitting that would take too long.
    """
    if size > _MOST_GRANULES * GRANULE:
        yield address, size
        return
    end = address + size
    for begin in range(address, end, GRANULE):
        yield begin, min(GRANULE, end - begin)


def is_partly_used(segment: _core.SegmentInfo) -> bool:
    """Returns whether a segment has both free and live blocks."""
    return len({block.state == "inactive" for block in segment.blocks}) == 2


def free_bytes(segment: _core.SegmentInfo) -> int:
    """Returns the free bytes of a segment."""
    return sum(block.size for block in segment.blocks if block.state == "inactive")


def wholly_free_bytes(segment: _core.SegmentInfo) -> int:
    """Returns the size of a segment if all of it is free, else 0."""
    return segment.total_size if free_bytes(segment) == segment.total_size else 0
