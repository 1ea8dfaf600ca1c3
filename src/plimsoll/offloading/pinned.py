"""Keeps page-locked host memory for reuse.

Locking pages takes half a second for a GiB, so each page is locked only once: buffers are parts of
large slabs, and a free buffer is kept for the next request that fits.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch

from plimsoll.base.units import MiB

_SLAB = 256 * MiB  # PyTorch rounds page-locked memory up to a power of two
_STEPS = 8  # the number of buffer sizes from one power of two to the next


@dataclass(eq=False)
class PinnedBuffer:
    """A piece of page-locked memory.

    Attributes:
        bytes: The memory as a tensor of bytes.
        busy: The event after which no copy uses the buffer; None if no copy does.
        size: The size in bytes.
    """

    bytes: Any
    busy: Any = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.bytes.numel()


def rounded(size: int) -> int:
    """Rounds a size up, so that similar sizes can use the same buffers.

    There are eight rounded sizes from one power of two to the next.
    """
    step = max(1 << max(size - 1, 1).bit_length() - 1, MiB) // _STEPS
    return -(-size // step) * step


class PinnedBuffers:
    """Page-locked buffers for reuse, by size. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[PinnedBuffer] = []  # sorted by size
        self._slab: Any = None
        self._carved = 0
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of all page-locked slabs, in use or free."""
        return self._held_bytes

    def take(self, size: int) -> PinnedBuffer:
        """Returns a buffer of at least `size` bytes; wait for its `busy` before writing to it."""
        wanted = rounded(size)
        with self._lock:
            place = bisect.bisect_left(self._free, wanted, key=attrgetter("size"))
            if place < len(self._free) and self._free[place].size <= wanted + wanted // 2:
                return self._free.pop(place)
            return PinnedBuffer(self._carve(wanted))

    def give_back(self, buffer: PinnedBuffer) -> None:
        """Gives back a buffer for reuse."""
        with self._lock:
            bisect.insort(self._free, buffer, key=attrgetter("size"))

    def _carve(self, size: int) -> Any:
        if size > _SLAB // 2:
            return self._lock_pages(size)
        if self._slab is None or self._carved + size > _SLAB:
            self._slab, self._carved = self._lock_pages(_SLAB), 0
        self._carved += size
        return self._slab[self._carved - size : self._carved]

    def _lock_pages(self, size: int) -> Any:
        pages = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._held_bytes += size
        return pages
