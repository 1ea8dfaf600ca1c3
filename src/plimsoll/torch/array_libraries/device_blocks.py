"""A block of GPU memory for a library, and when its memory may be used again.

An engine keeps free memory by stream: what is freed on a stream is lent to the next request there,
as the stream itself orders the two uses. That holds for a stream which lives as long as the process
and which the engine can name. For the others there is memory that no queued work uses any more, so
that any stream may begin with it; when such a block is freed, an event says when that is so again.

Streams are numbers here, as CUDA's driver has them: 0 and 1 are the default stream, 2 is another
stream in each thread (CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in CUDA's cuda.h), and what lies
above is a stream that somebody made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

DEFAULT_STREAM = 0
_IDLE = 1  # the default stream's other number, under which the engine keeps what no work uses
_MADE_BY_SOMEBODY = 3  # and above


class Memory(Protocol):
    """What is asked of the engine of one GPU; the extension's `Engine` is one."""

    def allocate(self, size: int, stream: int) -> int:
        """The address of a block of `size` bytes.

        Raises:
            plimsoll._core.OutOfMemory: If there is none, with PyTorch's text.
        """

    def free(self, address: int) -> None:
        """Give a block back."""

    def record_stream(self, address: int, stream: int) -> None:
        """Keep a block, once it is freed, until what is queued on that stream by then is done."""

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the card."""


class Memories(Protocol):
    """The engines of this process."""

    @property
    def allocator(self) -> str:
        """Which allocator they are of."""

    def open(self, device: int) -> Memory:
        """The engine of a GPU."""


@dataclass(frozen=True)
class Order:
    """By what the engine knows that a freed block may be used again.

    Attributes:
        stream: Whose free memory serves the request.
        event_on: The stream whose queued work the block is kept for when it is freed; None if
            `stream` orders that.
    """

    stream: int
    event_on: int | None = None


ANY_STREAM = Order(_IDLE, DEFAULT_STREAM)
"""Nobody says which stream uses the block. An event on the default stream comes after the work of
all streams but those that were made not to wait for it (cudaStreamNonBlocking)."""


def is_made(stream: int) -> bool:
    """Whether somebody made the stream, so that it may be destroyed; the others always exist."""
    return stream >= _MADE_BY_SOMEBODY


def event_stream(stream: int) -> int:
    """The stream on which an event comes after the work that `stream` has queued.

    That of a thread's own default stream is reached by the default stream, which waits for it.
    """
    return stream if is_made(stream) else DEFAULT_STREAM


def order_of(stream: int, *, lasts: bool) -> Order:
    """The order of a request for work on a stream.

    Args:
        stream: Its number.
        lasts: It is not destroyed before the process ends.
    """
    if stream in (DEFAULT_STREAM, _IDLE):
        return Order(DEFAULT_STREAM)
    if lasts and is_made(stream):
        return Order(stream)
    return Order(_IDLE, event_stream(stream))


class DeviceBlock:
    """A block that is given back when nobody refers to it any more.

    Args:
        memory: The engine of its GPU.
        order: When its memory may be used again.
        size_bytes: More than 0.
        keep: What has to live as long as the block does: its stream.

    Raises:
        plimsoll._core.OutOfMemory: If there is no memory for it.
    """

    __slots__ = ("_event_on", "_keep", "_memory", "address")

    def __init__(self, memory: Memory, order: Order, size_bytes: int, keep: object = None) -> None:
        self._memory: Memory | None = None  # as long as there is nothing to give back
        self.address = memory.allocate(size_bytes, order.stream)
        self._memory = memory
        self._event_on = order.event_on
        self._keep = keep

    def free(self) -> None:
        """Give it back; again, that does nothing.

        Raises:
            plimsoll.DriverError: If no event could be recorded, as in a capture of its stream. The
                memory then stays taken.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return
        if self._event_on is not None:
            memory.record_stream(self.address, self._event_on)
        memory.free(self.address)

    def __del__(self) -> None:
        self.free()
