"""Libraries that LD_PRELOAD names and that replace `cudaMalloc` and `cudaFree`.

On a machine with a GPU, PyTorch's allocator takes its segments from such a library, because the
dynamic linker finds the library's functions before CUDA's. torch_memory_saver works like this. On
simulated GPUs PyTorch's allocator calls the library's functions as well. The library's calls to
CUDA reach the simulated driver.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.cuda_pools import give_source
from plimsoll.torch.simulated.pluggable import PluggableAllocator

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

VARIABLE = "PLIMSOLL_LD_PRELOAD"
"""An environment variable that names libraries, like LD_PRELOAD. The dynamic linker ignores it, so
the process starts without NVIDIA's driver, which such a library needs."""
_DEFAULT_POOL = (0, 0)


def use_preloaded_allocation(simulation: Simulation) -> None:
    """Makes PyTorch's allocators take their segments from a preloaded library, if there is one.

    PyTorch must be imported. If segments are expandable, this function does nothing, because
    PyTorch does not call `cudaMalloc` for such segments.
    """
    if any(allocator.config.expandable_segments for allocator in simulation.allocators):
        return
    for path in preloaded_paths():
        replaced = _replaced_allocation(path)
        if replaced is not None:
            simulation.replaced_allocation = replaced
            for index in range(len(simulation.allocators)):
                give_source(simulation, index, _DEFAULT_POOL, replaced)
            return


def preloaded_paths() -> list[str]:
    """Returns the paths in LD_PRELOAD and in `VARIABLE`. Names without a `/` are left out."""
    named = " ".join(os.environ.get(variable, "") for variable in ("LD_PRELOAD", VARIABLE))
    return [path for path in re.split("[ :]+", named) if "/" in path]


def _replaced_allocation(path: str) -> PluggableAllocator | None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        assume(path, f"the preloaded library cannot be loaded and has no effect: {error}")
        return None
    functions = [_core.own_function(path, name) for name in ("cudaMalloc", "cudaFree")]
    if not all(functions):
        return None
    return PluggableAllocator(*_core.replace_allocation(*functions))
