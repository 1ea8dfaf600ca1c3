"""Serves NVIDIA's libraries to programs that open them by `ctypes`, from the simulation.

A program that opens one by its file's name gets an object whose attributes are the library's
functions. Other libraries are opened unchanged.
"""

from __future__ import annotations

import ctypes
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.simulated_nvml import NAMES, NvmlLibrary

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


def answer_by_ctypes(simulation: Simulation) -> None:
    """Makes `ctypes` open the stand-in for a library, from now on.

    Args:
        simulation: The GPUs that the stand-ins report.
    """
    stand_ins: dict[str, Any] = dict.fromkeys(NAMES, NvmlLibrary(simulation))
    make = ctypes.CDLL.__new__

    def new(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs  # Python passes them to `__init__`, but not for an object of another class
        if isinstance(name, str) and PurePath(name).name in stand_ins:
            return stand_ins[PurePath(name).name]
        return make(cls)

    ctypes.CDLL.__new__ = new  # type: ignore[method-assign]
