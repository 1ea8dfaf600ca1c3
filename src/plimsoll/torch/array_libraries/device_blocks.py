"""Blocks of GPU memory for libraries, and when their memory may be reused.

An engine keeps free memory by stream: the next request on a stream may reuse memory that was freed
there, because the stream itself orders the two uses. That requires a stream which lives as long as
the process and which the engine can identify. For other streams the engine has idle memory, which
no queued work uses, so that any stream may begin with it. When such a block is freed, an event
shows when it is idle again.

Streams are numbers here, as in CUDA's driver: 0 and 1 are the default stream, 2 is another stream
in each thread (CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in CUDA's cuda.h), and higher numbers are
streams that a program made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

DEFAULT_STREAM = 0
_IDLE = 1  # the default stream's other number, under which the engine keeps idle memory
_MADE_BY_SOMEBODY = 3  # and higher numbers


class Memory(Protocol):
    """The functions of a GPU's engine that libraries need; the extension's `Engine` is one."""

    def allocate(self, size: int, stream: int) -> int:
        """Returns the address of a block of `size` bytes.

        Raises:
            plimsoll._core.OutOfMemory: If there is no memory, with PyTorch's text.
        """

    def free(self, address: int) -> None:
        """Frees a block."""

    def record_stream(self, address: int, stream: int) -> None:
        """Delays the reuse of a freed block until the stream's work queued by then is done."""

    def memory_info(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the card."""


class Memories(Protocol):
    """The engines of this process."""

    @property
    def allocator(self) -> str:
        """Name of the engines' allocator."""

    def open(self, device: int) -> Memory:
        """Returns the engine of a GPU."""


@dataclass(frozen=True)
class Order:
    """Shows the engine when a freed block may be reused.

    Attributes:
        stream: The stream whose free memory serves the request.
        event_on: The stream whose queued work delays the block's reuse after its free; None if
            `stream` orders that.
    """

    stream: int
    event_on: int | None = None


ANY_STREAM = Order(_IDLE, DEFAULT_STREAM)
"""The order for a block whose stream is unknown. An event on the default stream comes after the
work of all streams except those that were made not to wait for it (cudaStreamNonBlocking).
"""


def is_made(stream: int) -> bool:
    """Returns whether a program made the stream, so that it may destroy it."""
    return stream >= _MADE_BY_SOMEBODY


def event_stream(stream: int) -> int:
    """Returns the stream on which an event comes after the work that `stream` has queued.

    For a thread's own default stream that is the default stream, which waits for it.
    """
    return stream if is_made(stream) else DEFAULT_STREAM


def order_of(stream: int, *, lasts: bool) -> Order:
    """Returns the order of a request for work on a stream.

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
    """A block that is freed with the last reference to it.

    Args:
        memory: The engine of its GPU.
        order: When the block's memory may be reused.
        size_bytes: More than 0.
        keep: An object that has to live as long as the block, such as its stream.

    Raises:
        plimsoll._core.OutOfMemory: If there is no memory for it.
    """

    __slots__ = ("_event_on", "_keep", "_memory", "address")

    def __init__(self, memory: Memory, order: Order, size_bytes: int, keep: object = None) -> None:
        self._memory: Memory | None = None  # until there is a block to free
        self.address = memory.allocate(size_bytes, order.stream)
        self._memory = memory
        self._event_on = order.event_on
        self._keep = keep

    def free(self) -> None:
        """Frees the block; a second call does nothing.

        Raises:
            plimsoll.DriverError: If no event could be recorded, as in a capture of its stream. The
                memory then stays allocated.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return
        if self._event_on is not None:
            memory.record_stream(self.address, self._event_on)
        memory.free(self.address)

    def __del__(self) -> None:
        self.free()
