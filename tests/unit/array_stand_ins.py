"""Provides small stand-ins for CuPy, Numba and RMM, and plimsoll's allocators on simulated GPUs."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from plimsoll import SimulatedGpu, _core
from plimsoll.base.units import GiB

LONG_NS = 1e9


class Engines:
    """Two simulated GPUs of 1 GiB. Each has an engine: an allocator together with its counters."""

    def __init__(self, allocator: str) -> None:
        self.allocator = allocator
        self.gpus = [SimulatedGpu(GiB), SimulatedGpu(GiB)]
        self._opened: dict[int, _core.Engine] = {}

    def open(self, device: int) -> _core.Engine:
        if device not in self._opened:
            self._opened[device] = _core.Engine.simulated(
                self.gpus[device]._driver, self.allocator, "", "2.15", device, False
            )
        return self._opened[device]

    def opened(self) -> dict[int, _core.Engine]:
        return self._opened

    def work(self, stream: int, device: int = 0, duration_ns: float = LONG_NS) -> None:
        """Queues work on a stream; by default the work is long."""
        self.gpus[device]._driver.launch(stream, duration_ns)

    def now(self) -> float:
        """Returns the first GPU's clock, in seconds."""
        return self.gpus[0].machine.now

    def advance(self, seconds: float) -> None:
        """Advances the GPUs' clock."""
        self.gpus[0].machine.advance(seconds)

    def finish(self, device: int = 0) -> None:
        self.gpus[device]._driver.synchronize_device()

    def allocated(self, device: int = 0) -> int:
        return self.open(device).statistics()["allocated_bytes.all.current"]

    def active(self, device: int = 0) -> int:
        """Returns the bytes of blocks that are allocated, or that queued work still uses."""
        return self.open(device).statistics()["active_bytes.all.current"]


class CupyStream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr
        self._foreign_stream_ref: object = None

    @classmethod
    def from_external(cls, stream: Any) -> CupyStream:
        found = cls(stream.__cuda_stream__()[1])
        found._foreign_stream_ref = stream
        return found


class CupyExternalStream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class CupyUnownedMemory:
    def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class CupyMemoryPointer:
    def __init__(self, mem: CupyUnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class CupyOutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"CuPy's own text of {size}")
        self._size, self._total, self._limit = size, total, limit

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._size, self._total, self._limit))


class Cupy:
    """A stand-in for the part of CuPy that plimsoll uses. A test sets its `device` and `stream`."""

    def __init__(self) -> None:
        self.device = 0
        self.stream: Any = CupyStream(0)
        self.allocator: Any = None
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: self.device),
            get_current_stream=lambda: self.stream,
            Stream=CupyStream,
            UnownedMemory=CupyUnownedMemory,
            MemoryPointer=CupyMemoryPointer,
            memory=SimpleNamespace(OutOfMemoryError=CupyOutOfMemoryError),
            set_allocator=lambda allocator: setattr(self, "allocator", allocator),
        )


class NumbaBase:
    """A stand-in for `numba.cuda.HostOnlyCUDAMemoryManager`."""

    def __init__(self, *, context: Any) -> None:
        self.context = context


class NumbaIpcMixin:
    def get_ipc_handle(self, memory: Any) -> tuple[str, Any]:
        return ("a handle", memory)


class NumbaApiError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class NumbaPointer:
    def __init__(
        self, context: Any, pointer: ctypes.c_void_p, size: int, finalizer: Callable[[], None]
    ) -> None:
        self.context, self.pointer, self.size = context, pointer, size
        self.free = weakref.finalize(self, finalizer)


def numba_cuda() -> Any:
    driver = SimpleNamespace(CudaAPIError=NumbaApiError, _memory_manager=None)
    return SimpleNamespace(
        HostOnlyCUDAMemoryManager=NumbaBase,
        GetIpcHandleMixin=NumbaIpcMixin,
        MemoryPointer=NumbaPointer,
        MemoryInfo=lambda free, total: (free, total),
        cudadrv=SimpleNamespace(driver=driver),
        set_memory_manager=lambda manager: setattr(driver, "_memory_manager", manager),
    )


class RmmStream:
    def __init__(self, number: int) -> None:
        self.number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.number)
