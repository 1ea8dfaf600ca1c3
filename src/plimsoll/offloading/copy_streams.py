"""Copies storages to host memory and back on two side streams, and waits for the copies.

The stream on which the program runs kernels is called the *compute stream* here. The compute stream
waits for a copy to host memory before it overwrites the copy's source. It waits for a copy back to
the card before it reads the data. The host does not wait for copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from plimsoll.offloading.torch_storages import as_bytes, copy

if TYPE_CHECKING:
    from plimsoll.offloading.pinned import PinnedBuffer, PinnedBuffers


@dataclass
class Movements:
    """The bytes that one step moved, and the step's waits for copies.

    Attributes:
        saved: The bytes of storages that autograd saved and plimsoll may move.
        out: The bytes copied to host memory.
        back: The bytes copied back to the card.
        waits: For each wait for a copy, a CUDA event before the wait and one after it.
    """

    saved: int = 0
    out: int = 0
    back: int = 0
    waits: list[tuple[Any, Any]] = field(default_factory=list)

    def waited_seconds(self) -> float:
        """Returns how long the compute stream waited; blocks until its last wait is over."""
        seconds = 0.0
        for begin, end in self.waits:
            end.synchronize()
            seconds += begin.elapsed_time(end) / 1000
        return seconds


class CopyStreams:
    """One device's two streams for copies: one to host memory, one back to the card.

    Args:
        device: The device.
        buffers: The page-locked buffers for copies.

    Attributes:
        device: The device.
        movements: The bytes moved in this step so far, and the waits for copies.
    """

    def __init__(self, device: Any, buffers: PinnedBuffers) -> None:
        self.device = device
        self.movements = Movements()
        self._buffers = buffers
        self._out = torch.cuda.Stream(device)
        self._back = torch.cuda.Stream(device)
        self._streams: dict[int, Any] = {}  # streams by their handles

    def current(self) -> Any:
        """Returns the current stream, many times faster than `torch.cuda.current_stream`."""
        raw = torch._C._cuda_getCurrentRawStream(self.device.index)
        stream = self._streams.get(raw)
        if stream is None:
            stream = self._streams[raw] = torch.cuda.current_stream(self.device)
        return stream

    def copy_out(self, storage: Any, size: int, stream: Any) -> PinnedBuffer:
        """Queues the copy of a storage to host memory, after the work on `stream`.

        Returns the buffer in host memory. Its `busy` is the event at the end of the copy.
        """
        buffer = self._buffers.take(size)
        self._out.wait_stream(stream)
        if buffer.busy is not None:
            self._out.wait_event(buffer.busy)
        copy(buffer.bytes[:size], as_bytes(storage), self._out)
        buffer.busy = self._out.record_event()
        self.movements.out += size
        return buffer

    def copy_back(self, buffer: PinnedBuffer, size: int, copied: Any, stream: Any) -> Any:
        """Allocates a storage on the card, and queues a copy from a buffer into the storage.

        The buffer's `busy` becomes the event at the end of this copy.

        Args:
            buffer: The buffer in host memory.
            size: The size of the storage, in bytes.
            copied: The event after which the buffer is filled.
            stream: The current stream.

        Raises:
            torch.OutOfMemoryError: If the device has no room for the storage. Nothing has changed
                then.
        """
        there = torch.empty(size, dtype=torch.uint8, device=self.device)
        self._back.wait_stream(stream)  # earlier work may still use this memory
        self._back.wait_event(copied)
        copy(there, buffer.bytes[:size], self._back)
        buffer.busy = self._back.record_event()
        self.movements.back += size
        return there.untyped_storage()

    def wait(self, stream: Any, event: Any, *, by_host: bool) -> None:
        """Makes a stream or the host wait for a copy; records the time that a stream waits."""
        if event.query():
            return
        if by_host:
            event.synchronize()
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        stream.wait_event(event)
        end.record(stream)
        self.movements.waits.append((begin, end))
