"""Packs blocks for a page: those held within a range of events, or the largest ones that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.page.columns import pack_column, packed_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.page.device_view import DeviceView


_MULTIPLE = 512


def pack_blocks(view: DeviceView, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Returns the packed columns of some blocks.

    `life` is the number of events from a block's `start` to its `end`, both included; 0 if the
    block was never freed. `wait` is the number of events from `end` to `completed`, both included;
    0 if the free was never completed. `rounding` is the difference between the allocator's
    rounded size and the size rounded up to a multiple of 512 bytes; it is usually 0.

    Args:
        view: The device.
        rows: The blocks' indices in `view.lifetimes`, in increasing order.
    """
    blocks = view.lifetimes[rows]
    events = view.event_count
    plain = -(-blocks.size.astype(np.int64) // _MULTIPLE) * _MULTIPLE
    life = np.where(blocks.end < events, blocks.end - blocks.start + 1, 0)
    wait = np.where(blocks.completed < events, blocks.completed - blocks.end + 1, 0)
    return {
        "start": pack_column(blocks.start, "delta"),
        "life": pack_column(life),
        "wait": pack_column(wait),
        "address": pack_column(blocks.address - np.uint64(view.origin)),
        "size": pack_column(blocks.size),
        "rounding": pack_column(view.rounded[rows].astype(np.int64) - plain),
        "shared": pack_column(blocks.shared),
        "stream": pack_column(blocks.stream),
        "stack": pack_column(blocks.stack),
        "freed_by": pack_column(view.freed_by[rows]),
        "pool": pack_column(blocks.pool),
        "category": pack_column(view.category[rows]),
    }


def blocks_between(view: DeviceView, begin: int, end: int) -> NDArray[np.int64]:
    """Returns the indices of the blocks held at any time after event `begin` and before `end`.

    A freed block is still held while it waits for other streams.
    """
    lifetimes = view.lifetimes
    return np.flatnonzero((lifetimes.start < end) & (lifetimes.completed > begin))


def largest_that_fit(view: DeviceView, room: int) -> tuple[dict[str, Any], NDArray[np.int64], int]:
    """Packs as many blocks as fit into a page, the largest first.

    Args:
        view: The device.
        room: The most bytes of text that the packed blocks may take.

    Returns:
        The packed blocks, their indices, and a size in bytes. Every block of at least this size is
        included. The size is 0 if all blocks are included.
    """
    size = view.lifetimes.size
    rows = np.arange(len(size))
    least = 0
    packed = pack_blocks(view, rows)
    distinct, counts = np.unique(size, return_counts=True)
    # For each distinct size, the number of blocks that are at least as large.
    at_least = counts[::-1].cumsum()[::-1]
    while (taken := packed_size(packed)) > room and len(rows):
        most = int(len(rows) * min(room / taken, 0.98) * 0.97)
        fitting = np.flatnonzero(at_least <= most)
        least = int(distinct[fitting[0]]) if len(fitting) else int(distinct[-1]) + 1
        rows = np.flatnonzero(size >= least)
        packed = pack_blocks(view, rows)
    return packed, rows, least
