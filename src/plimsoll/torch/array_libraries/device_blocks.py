"""Allocates GPU memory for array libraries, and decides when freed memory may be reused.

An engine, plimsoll's allocator of one GPU, keeps the free memory of each stream apart. A request on
a stream may get memory that was freed on the same stream, because the stream finishes the old work
first. This requires a stream that lives as long as the process and that the engine can identify.
All other streams get *idle* memory: no queued work uses it, so any stream may use it at once. When
a block of idle memory is freed, plimsoll records a CUDA event; once the event has completed, the
memory is idle again.

Streams are numbers, as in CUDA's driver. 0 and 1 are the default stream, and 2 is each thread's own
default stream (CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in cuda.h). Higher numbers are streams
that a program made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

DEFAULT_STREAM = 0
# The engine keeps idle memory as if it were memory of a stream with this number. No real stream has
# this number in the engine. CUDA calls the default stream 0 or 1, but the engine always gets 0.
_IDLE = 1
_MADE_BY_SOMEBODY = 3  # streams that a program made have this number or a higher one


class Memory(Protocol):
    """The methods of a GPU's engine that array libraries need. `_core.Engine` has these methods."""

    def allocate(self, size: int, stream: int) -> int:
        """Returns the address of a new block of `size` bytes.

        Raises:
            plimsoll._core.OutOfMemory: If there is no memory, with the text of PyTorch's error.
        """

    def free(self, address: int) -> None:
        """Frees a block."""

    def record_stream(self, address: int, stream: int) -> None:
        """Notes that work on `stream` uses a block that was allocated for a different stream.

        Some of this work may still be queued when the block is freed. The engine reuses the block
        only after that work is done.
        """

    def memory_info(self) -> tuple[int, int]:
        """Returns the card's free and total bytes."""


class Memories(Protocol):
    """The engines of this process."""

    @property
    def allocator(self) -> str:
        """Name of the engines' allocator."""

    def open(self, device: int) -> Memory:
        """Returns the engine of a GPU."""


@dataclass(frozen=True)
class Order:
    """Tells the engine when a freed block may be reused.

    Attributes:
        stream: The stream whose free memory serves the request.
        event_on: The stream whose queued work must finish before a freed block is reused. None if
            only `stream` reuses the block, because a stream does its work in order.
    """

    stream: int
    event_on: int | None = None


ANY_STREAM = Order(_IDLE, DEFAULT_STREAM)
"""The `Order` of a block that any stream may use.

An event on the default stream waits for the work of all streams, except for streams that do not
synchronize with it (cudaStreamNonBlocking).
"""


def is_made(stream: int) -> bool:
    """Returns whether a program made the stream, and may therefore destroy it."""
    return stream >= _MADE_BY_SOMEBODY


def event_stream(stream: int) -> int:
    """Returns the stream on which to record an event that waits for the work queued on `stream`.

    For a thread's own default stream, returns the process's default stream, which waits for the
    thread's default stream.
    """
    return stream if is_made(stream) else DEFAULT_STREAM


def order_of(stream: int, *, lasts: bool) -> Order:
    """Returns the `Order` of a block that is used on a stream.

    Args:
        stream: The stream's number.
        lasts: Whether the stream lives until the process ends.
    """
    if stream in (DEFAULT_STREAM, _IDLE):
        return Order(DEFAULT_STREAM)
    if lasts and is_made(stream):
        return Order(stream)
    return Order(_IDLE, event_stream(stream))


class DeviceBlock:
    """A block of memory, freed with the last reference to this object.

    Args:
        memory: The engine of the block's GPU.
        order: When the block's memory may be reused.
        size_bytes: The block's size, more than 0.
        keep: An object that has to live as long as the block, such as its stream.

    Raises:
        plimsoll._core.OutOfMemory: If there is no memory for it.
    """

    __slots__ = ("_event_on", "_keep", "_memory", "address")

    def __init__(self, memory: Memory, order: Order, size_bytes: int, keep: object = None) -> None:
        self._memory: Memory | None = None  # None if there is no block to free
        self.address = memory.allocate(size_bytes, order.stream)
        self._memory = memory
        self._event_on = order.event_on
        self._keep = keep

    def free(self) -> None:
        """Frees the block; a second call does nothing.

        Raises:
            plimsoll.DriverError: If no event can be recorded, for example while the stream is
                captured. The memory then stays allocated.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return
        if self._event_on is not None:
            memory.record_stream(self.address, self._event_on)
        memory.free(self.address)

    def __del__(self) -> None:
        self.free()
