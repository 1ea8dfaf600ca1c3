"""A program's own allocators in torch.cuda: objects with two C functions from a library.

A pool of `torch.cuda.MemPool(allocator)` gets its segments from these functions, as on a machine
with a GPU. If the program installs such an object as the allocator of the whole process, plimsoll
does not call the functions. plimsoll's own allocator `uncached` then serves the process.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.assumptions import assume

if TYPE_CHECKING:
    from types import ModuleType


class CudaAllocator:
    """Stands in for torch._C._cuda_CUDAAllocator. Requests always go to plimsoll's engine."""


class PluggableAllocator(CudaAllocator):
    """A program's own allocator: the addresses of its two functions, 0 if unknown."""

    def __init__(self, alloc_fn: int = 0, free_fn: int = 0) -> None:
        self.alloc_fn, self.free_fn = alloc_fn, free_fn

    @property
    def gives_memory(self) -> bool:
        """Whether `alloc_fn` and `free_fn` are known."""
        return bool(self.alloc_fn and self.free_fn)

    def _ignore(self, function: int) -> None:
        """Accepts a function other than `alloc_fn` and `free_fn`; plimsoll never calls it."""

    set_init_fn = set_reset_fn = set_memory_fraction_fn = set_base_alloc_fn = _ignore
    set_record_stream_fn = set_begin_allocate_to_pool = _ignore
    set_end_allocate_to_pool_fn = set_release_pool = _ignore


def load_own_allocators(memory: ModuleType) -> None:
    """Makes `torch.cuda.memory` load allocators in Python; PyTorch's C++ code would need CUDA."""

    def start(self: Any, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        if not Path(path_to_so_file).exists():
            raise OSError(f"{path_to_so_file}: cannot open shared object file: No such file")
        try:
            library = ctypes.CDLL(path_to_so_file)
        except OSError as error:
            assume(path_to_so_file, f"PyTorch's allocator serves, as it cannot be loaded: {error}")
            self._allocator = PluggableAllocator()
            return
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for name in (alloc_fn_name, free_fn_name)
        ]
        self._allocator = PluggableAllocator(*addresses)

    memory.CUDAPluggableAllocator.__init__ = start
