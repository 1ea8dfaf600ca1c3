"""Serves CuPy's arrays through `cupy.cuda.set_allocator`.

CuPy asks for a number of bytes and gets a block of memory. The block is freed when the last array
that uses it is destroyed. As in CuPy's own pool, a block belongs to the stream that is current when
CuPy requests it. A program that uses the block on another stream has to synchronize the two
streams.

CuPy destroys a stream when nothing refers to the stream any more. On each GPU, plimsoll therefore
keeps references to the first 32 streams that request memory, and each of these streams reuses its
own free memory. A program may make more streams, for example a new one for each step. plimsoll
serves all later streams from idle memory, which `device_blocks` describes.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.torch.array_libraries.device_blocks import DeviceBlock, is_made, order_of

if TYPE_CHECKING:
    from plimsoll.torch.array_libraries.device_blocks import Memories, Memory, Order

MOST_KEPT_STREAMS = 32


class CupyAllocator:
    """The allocator that is passed to `cupy.cuda.set_allocator`.

    Args:
        cupy: The module `cupy`.
        memories: The allocator of each GPU.
    """

    def __init__(self, cupy: Any, memories: Memories) -> None:
        cuda = cupy.cuda
        self._current_device = cuda.runtime.getDevice
        self._current_stream = cuda.get_current_stream
        self._stream_type = cuda.Stream
        self._pointer, self._memory = cuda.MemoryPointer, cuda.UnownedMemory
        self._memories = memories
        self._failure = _failure_type(cuda.memory.OutOfMemoryError)
        # The keys are a GPU's number and a stream's number. Only default streams and kept streams
        # have an entry.
        self._sources: dict[tuple[int, int], tuple[Memory, Order]] = {}
        self._kept: dict[int, list[Any]] = {}

    def __call__(self, size: int) -> Any:
        """Returns a `cupy.cuda.MemoryPointer` to `size` bytes on the current GPU.

        Raises:
            cupy.cuda.memory.OutOfMemoryError: If there is no memory, with PyTorch's error
                text.
        """
        device: int = self._current_device()
        if size == 0:
            return self._pointer(self._memory(0, 0, None, device), 0)
        stream = self._current_stream()
        memory, order = self._sources.get((device, stream.ptr)) or self._source(device, stream)
        try:
            block = DeviceBlock(memory, order, size, stream)
        except _core.OutOfMemory:
            block = self._after_collecting(memory, order, size, stream)
        return self._pointer(self._memory(block.address, size, block, device), 0)

    def _after_collecting(
        self, memory: Memory, order: Order, size: int, stream: object
    ) -> DeviceBlock:
        """Runs Python's garbage collector, then allocates again, as CuPy's own pool does."""
        gc.collect()
        try:
            return DeviceBlock(memory, order, size, stream)
        except _core.OutOfMemory as error:
            free, total = memory.memory_info()
            raise self._failure(size, total - free, str(error)) from None

    def _source(self, device: int, stream: Any) -> tuple[Memory, Order]:
        """Returns the engine and the `Order` for a stream that is new or not kept."""
        number: int = stream.ptr
        kept = self._kept.setdefault(device, [])
        lasts = self._is_cupys(stream) and len(kept) < MOST_KEPT_STREAMS
        source = self._memories.open(device), order_of(number, lasts=lasts)
        if lasts and is_made(number):
            kept.append(stream)
        if lasts or not is_made(number):
            self._sources[device, number] = source
        return source

    def _is_cupys(self, stream: Any) -> bool:
        """Returns whether only CuPy destroys the stream; false for ExternalStream, for example."""
        is_foreign = getattr(stream, "_foreign_stream_ref", None) is not None  # from CuPy 14 on
        return isinstance(stream, self._stream_type) and not is_foreign


def _failure_type(base: Any) -> Any:
    """Returns a subclass of CuPy's out-of-memory error that shows the engine's text."""

    class OutOfMemoryError(base):  # type: ignore[misc]
        def __init__(self, size: int, total: int, text: str) -> None:
            super().__init__(size, total)
            self._text = text

        def __str__(self) -> str:
            return self._text

        def __reduce__(self) -> tuple[Any, ...]:
            return (base, (self._size, self._total))

    return OutOfMemoryError


def check() -> None:
    """Imports CuPy. plimsoll can serve CuPy at any time, so nothing else is checked."""
    importlib.import_module("cupy")


def serve(memories: Memories) -> None:
    """Makes CuPy take the memory of all new arrays from the engines in `memories`."""
    cupy = importlib.import_module("cupy")
    cupy.cuda.set_allocator(CupyAllocator(cupy, memories))
