"""CuPy's arrays, by `cupy.cuda.set_allocator`.

CuPy asks for bytes and is given memory with an owner, which dies with the last array. A block
belongs to the stream that is current where it is asked for, as in CuPy's own pool; who uses it on
another stream has to wait there.

CuPy destroys a stream with the last reference to it. So the streams that it allocates on are kept,
the first 32 of each GPU, and have free memory of their own; a program that makes a new stream for
each step gets memory that no work uses for those that follow.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.array_libraries.device_blocks import DeviceBlock, order_of

if TYPE_CHECKING:
    from plimsoll.array_libraries.device_blocks import Memories, Memory, Order

MOST_KEPT_STREAMS = 32


class CupyAllocator:
    """What `cupy.cuda.set_allocator` takes.

    Args:
        cupy: The module.
        memories: The engines.
    """

    def __init__(self, cupy: Any, memories: Memories) -> None:
        self._cuda = cupy.cuda
        self._memories = memories
        self._engines: dict[int, Memory] = {}
        self._kept: dict[int, dict[int, Any]] = {}  # streams by GPU and number
        self._failure = _failure_type(cupy.cuda.memory.OutOfMemoryError)

    def __call__(self, size: int) -> Any:
        """A `cupy.cuda.MemoryPointer` to so many bytes on the current GPU.

        Raises:
            cupy.cuda.memory.OutOfMemoryError: If there is no memory, with PyTorch's text.
        """
        device: int = self._cuda.runtime.getDevice()
        if size == 0:
            return self._pointer(0, 0, None, device)
        stream = self._cuda.get_current_stream()
        order = order_of(stream.ptr, lasts=self._lasts(device, stream))
        block = self._block(device, size, order, stream)
        return self._pointer(block.address, size, block, device)

    def _pointer(self, address: int, size: int, owner: object, device: int) -> Any:
        memory = self._cuda.UnownedMemory(address, size, owner, device)
        return self._cuda.MemoryPointer(memory, 0)

    def _block(self, device: int, size: int, order: Order, stream: object) -> DeviceBlock:
        engine = self._engine(device)
        try:
            return DeviceBlock(engine, size, order, stream)
        except _core.OutOfMemory:
            gc.collect()  # arrays in circles, as CuPy's own pool does
        try:
            return DeviceBlock(engine, size, order, stream)
        except _core.OutOfMemory as error:
            allocated = self._allocated(device)
            raise self._failure(size, allocated, str(error)) from None

    def _engine(self, device: int) -> Memory:
        if device not in self._engines:
            self._engines[device] = self._memories.open(device)
        return self._engines[device]

    def _allocated(self, device: int) -> int:
        free, total = self._engine(device).memory_info()
        return total - free

    def _lasts(self, device: int, stream: Any) -> bool:
        kept = self._kept.setdefault(device, {})
        if stream.ptr in kept:
            return True
        # An ExternalStream is no Stream: somebody else destroys what it stands for.
        if not isinstance(stream, self._cuda.Stream) or len(kept) >= MOST_KEPT_STREAMS:
            return False
        kept[stream.ptr] = stream
        return True


def _failure_type(base: Any) -> Any:
    """CuPy's error with the engine's text, which says more than CuPy's own."""

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
    """Import CuPy; there is nothing that could be too late."""
    importlib.import_module("cupy")


def serve(memories: Memories) -> None:
    """Let CuPy's arrays of this process take their memory from these engines, from now on."""
    cupy = importlib.import_module("cupy")
    cupy.cuda.set_allocator(CupyAllocator(cupy, memories))
