"""Serves NVIDIA's libraries to programs that open them by `ctypes`, from the simulation.

A program that opens one by its file's name gets an object whose attributes are the library's
functions. Other libraries are opened unchanged. CUDA's runtime is loaded as well, if the machine
has it, because PyTorch's libraries are linked to it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated import simulated_cudart, simulated_driver, simulated_nvml
from plimsoll.torch.simulated.ranks import opened_nccl

if TYPE_CHECKING:
    from plimsoll.torch.simulated.ranks.process_groups import ProcessGroups
    from plimsoll.torch.simulated.simulation import Simulation


def answer_by_ctypes(simulation: Simulation, groups: ProcessGroups) -> None:
    """Makes `ctypes` open the stand-in for a library, from now on.

    Args:
        simulation: The GPUs that the stand-ins report.
        groups: The process groups through which ranks meet.
    """
    nvml = simulated_nvml.nvml_library(simulation)
    nccl = opened_nccl.nccl_library(simulation, groups)
    driver = simulated_driver.driver_library(simulation)
    cudart = simulated_cudart.cudart_library(simulation, driver)
    stand_ins: dict[str, Any] = {
        **dict.fromkeys(simulated_driver.NAMES, driver),
        **dict.fromkeys(simulated_nvml.NAMES, nvml),
        **dict.fromkeys(opened_nccl.NAMES, nccl),
    }
    make = ctypes.CDLL.__new__

    def new(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        file = PurePath(name).name if isinstance(name, str) else ""
        if file in stand_ins:
            return stand_ins[file]
        if file.startswith(simulated_cudart.PREFIX):
            with suppress(OSError):
                make(cls).__init__(name, *args, **kwargs)
            return cudart
        # Python passes the other arguments to `__init__`, but not for an object of another class.
        return make(cls)

    ctypes.CDLL.__new__ = new  # type: ignore[method-assign]
