"""Adds to `torch._C` the functions that a CUDA build has. They act on plimsoll's simulated GPUs.

`torch.cuda` is written in Python on top of these functions. With them it works unchanged, even if
PyTorch was built without CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_collectives import collective_functions
from plimsoll.torch.simulated.cuda_devices import CudaDevices, device_functions
from plimsoll.torch.simulated.cuda_libraries import library_functions
from plimsoll.torch.simulated.cuda_memory import memory_functions
from plimsoll.torch.simulated.cuda_missing import missing_class, missing_functions
from plimsoll.torch.simulated.cuda_pools import pool_functions
from plimsoll.torch.simulated.cuda_settings import setting_functions
from plimsoll.torch.simulated.cuda_streams import stream_functions

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


def add_cuda_functions(c: ModuleType, simulation: Simulation) -> None:
    """Gives `torch._C` the functions and types of a CUDA build."""
    devices = CudaDevices(c, simulation)
    functions: dict[str, Any] = missing_functions(c)
    functions |= device_functions(devices)
    functions |= stream_functions(c, devices)
    functions |= library_functions(simulation, devices.use)
    functions |= memory_functions(simulation, functions["_cudart"].cudaMemGetInfo)
    functions |= setting_functions(simulation)
    functions |= collective_functions()
    functions |= pool_functions(simulation)
    functions["_tensors_data_ptrs_at_indices_equal"] = _are_at
    for name, value in functions.items():
        setattr(c, name, value)
    if hasattr(c, "_aoti"):
        runner = "AOTIModelContainerRunnerCuda"
        setattr(c._aoti, runner, missing_class(runner, where="torch._C._aoti"))


def _are_at(tensors: list[Any], addresses: list[int | None], indices: list[int]) -> bool:
    """Returns whether the tensors at these indices still have the given addresses."""
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)
