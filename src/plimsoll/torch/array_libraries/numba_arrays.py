"""Serves Numba's device arrays through Numba's interface for external memory management (EMM).

Numba does not say on which streams an array is used. Numba's own manager frees memory by cuMemFree,
which waits for the device. plimsoll gives an array idle memory, which no queued work uses. When the
array is destroyed, plimsoll records a CUDA event instead of waiting. The memory is idle again once
the event has completed.

The interface is `numba.cuda.BaseCUDAMemoryManager`, version 1, the same in Numba and in the package
numba-cuda. Page-locked and managed memory still come from Numba.
"""

from __future__ import annotations

import importlib
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.torch.array_libraries.device_blocks import ANY_STREAM, DeviceBlock

if TYPE_CHECKING:
    from plimsoll.torch.array_libraries.device_blocks import Memories, Memory

_INTERFACE_VERSION = 1
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def manager_type(cuda: Any, memories: Memories) -> Any:
    """Returns a class of memory managers. Numba makes one object of the class for each GPU.

    Args:
        cuda: The module `numba.cuda`.
        memories: The engines.
    """

    class PlimsollMemoryManager(
        cuda.GetIpcHandleMixin,  # type: ignore[misc]
        cuda.HostOnlyCUDAMemoryManager,  # type: ignore[misc]
    ):
        def initialize(self) -> None:
            """Does nothing: the engine is made when it is first used."""

        def memalloc(self, size: int) -> Any:
            """Returns memory on the GPU of this object's context.

            Raises:
                CudaAPIError: If there is no memory, with the text of PyTorch's error.
            """
            try:
                block = DeviceBlock(self._memory(), ANY_STREAM, max(size, 1))
            except _core.OutOfMemory as error:
                failure = cuda.cudadrv.driver.CudaAPIError(_OUT_OF_MEMORY, str(error))
                raise failure from None
            pointer = c_void_p(block.address)
            return cuda.MemoryPointer(self.context, pointer, size, finalizer=block.free)

        def get_memory_info(self) -> Any:
            """Returns the card's free and total bytes."""
            free, total = self._memory().memory_info()
            return cuda.MemoryInfo(free=free, total=total)

        def get_ipc_handle(self, memory: Any) -> Any:
            """Returns a handle with which another process can open the memory.

            Raises:
                InputError: If the memory is mapped in pieces, for which CUDA has no such handle.
            """
            if memories.allocator == "elastic":
                raise InputError(
                    "CUDA's handles for other processes do not reach the elastic allocator's "
                    'memory: plimsoll.install("native", numba=True) has memory that they do'
                )
            return super().get_ipc_handle(memory)

        @property
        def interface_version(self) -> int:
            """Returns the version of the EMM interface."""
            return _INTERFACE_VERSION

        def _memory(self) -> Memory:
            return memories.open(self.context.device.id)

    return PlimsollMemoryManager


def check() -> None:
    """Imports Numba and checks that plimsoll can still manage its memory.

    Raises:
        InputError: If Numba has a memory manager already.
    """
    cuda = importlib.import_module("numba.cuda")
    if getattr(cuda.cudadrv.driver, "_memory_manager", None) is not None:
        raise InputError(
            "Numba manages its GPU memory already; call plimsoll.install(numba=True) before "
            "Numba's first array or kernel, and set no other memory manager"
        )


def serve(memories: Memories) -> None:
    """Makes all Numba arrays of this process take GPU memory from the engines in `memories`."""
    cuda = importlib.import_module("numba.cuda")
    cuda.set_memory_manager(manager_type(cuda, memories))
