"""NVIDIA's driver API (libcuda.so.1), answered by the simulated GPUs.

A program calls it by `ctypes`, or in an extension that is linked to libcuda.so.1. The API
allocates memory of the same simulated cards that PyTorch's allocator uses. Copies between host and
card take time and move no values.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulation import Simulation

NAMES = ("libcuda.so.1", "libcuda.so")
"""The names of the library's file under Linux."""

_LIBRARY = "libplimsoll_cuda.so"
_NEEDED = (
    *("plimsoll_current_device", "plimsoll_set_device", "plimsoll_use"),
    *("plimsoll_pin", "plimsoll_unpin"),
)
"""The functions that the driver API and the runtime need from the simulated GPU's library."""
COPIES_LACK_VALUES = (
    "plimsoll simulates the time of CUDA's own copies between host and card; the destination keeps "
    "its old values"
)
"""The assumption behind a program's copies by CUDA's driver or runtime."""
_TELL_SIZES = ("cuMemGetInfo", "cuDeviceTotalMem")
"""Functions that return a card's memory size. A program may adapt its own requests to the size."""


def driver_library(simulation: Simulation) -> DriverLibrary:
    """Makes the simulated GPUs answer the driver API in this process, and returns libcuda.

    Raises:
        InputError: If plimsoll's installation lacks the library.
    """
    rows = [
        (gpu._driver, card.total_bytes, card.multiprocessors, *card.compute_capability)
        for gpu, card in zip(simulation.machine.gpus, simulation.profiles, strict=True)
    ]
    addresses = [
        ctypes.cast(getattr(simulation.library.lib, name), ctypes.c_void_p).value or 0
        for name in _NEEDED
    ]
    table = _core.answer_cuda(rows, *addresses)
    path = Path(_core.__file__).with_name(_LIBRARY)
    try:
        opened = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise InputError(f"{path} cannot be loaded ({error}); install plimsoll anew") from None
    opened.plimsoll_set_cuda_calls(ctypes.c_void_p(table))
    return DriverLibrary(opened, simulation.note_size_read)


class DriverLibrary:
    """The driver's library in the form that `ctypes` returns: its functions are attributes."""

    def __init__(self, opened: ctypes.CDLL, note_size_read: Callable[[], None]) -> None:
        """Makes the functions of an opened library available.

        Args:
            opened: The library.
            note_size_read: Called when the program looks up a function that returns the size of a
                card's memory.
        """
        self._opened = opened
        self._note_size_read = note_size_read

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = self[name]  # a new object: the program may set its `argtypes` and `restype`
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        if name.removesuffix("_v2") in _TELL_SIZES:
            self._note_size_read()
        try:
            return self._opened[name]
        except AttributeError:
            return self._opened[f"{name}_v2"]
