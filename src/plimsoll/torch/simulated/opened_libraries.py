"""Simulates NVIDIA's libraries for programs that open them by `ctypes`.

A program that opens the driver, NVML, NCCL or the CUDA runtime gets an object whose attributes are
the library's functions. If the machine has the real CUDA runtime, plimsoll also loads that, because
PyTorch's libraries are linked to it.

Once PyTorch is imported, a program may open another library by its path. This library's calls of
CUDA then reach the simulated GPUs. If the library needs CUDA libraries that are not installed,
plimsoll first makes stand-ins for them.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.torch.simulated import simulated_cudart, simulated_driver, simulated_nvml
from plimsoll.torch.simulated.libraries.loading import loaded
from plimsoll.torch.simulated.ranks import opened_nccl

if TYPE_CHECKING:
    from plimsoll.torch.simulated.ranks.process_groups import ProcessGroups
    from plimsoll.torch.simulated.simulation import Simulation


_CUDAS_OWN = ("libcu", "libnv", "libnccl", "libtorch", "libc10")
"""The beginnings of the names of NVIDIA's and PyTorch's libraries.

plimsoll does not redirect these libraries' calls of CUDA.
"""


def answer_by_ctypes(simulation: Simulation, groups: ProcessGroups) -> None:
    """Makes `ctypes.CDLL` return stand-ins for NVIDIA's libraries from now on.

    Args:
        simulation: The GPUs that the stand-ins report.
        groups: The process groups through which the ranks communicate.
    """
    nvml = simulated_nvml.nvml_library(simulation)
    nccl = opened_nccl.nccl_library(simulation, groups)
    driver = simulated_driver.driver_library(simulation)
    cudart = simulated_cudart.cudart_library(simulation)
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
        # `ctypes.CDLL.__init__` loads the library. Python does not call it if `__new__` returns
        # `cudart`, so this function calls it, unless the class has its own `__init__`.
        is_plain = cls.__init__ is ctypes.CDLL.__init__
        if file.startswith(simulated_cudart.PREFIX):
            with suppress(OSError):
                if is_plain:
                    make(cls).__init__(name, *args, **kwargs)
            return cudart
        if is_plain and "/" in str(name) and "torch" in sys.modules:
            with suppress(OSError):
                loaded(lambda: make(cls).__init__(name, *args, **kwargs), name)
                if not file.startswith(_CUDAS_OWN):
                    _core.redirect_imports(str(name))
        return make(cls)

    ctypes.CDLL.__new__ = new  # type: ignore[method-assign]
