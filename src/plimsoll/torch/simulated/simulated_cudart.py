"""CUDA's runtime (libcudart) for programs that open it by `ctypes`.

The functions call the simulated driver. Extensions that are linked to libcudart do not use this
stand-in. A function that is not simulated returns the status "not supported".
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.library_stand_in import LibraryStandIn, number, pointee

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulated_driver import DriverLibrary
    from plimsoll.torch.simulated.simulation import Simulation

PREFIX = "libcudart"
"""How names of the library's files begin: libcudart.so.13, or TileLang's libcudart_stub.so."""

_SUCCESS, _NOT_SUPPORTED = 0, 801
_NO_VALUES = (
    "plimsoll simulates the time of CUDA's own copies between host and card; the destination keeps "
    "its old values"
)


def cudart_library(simulation: Simulation, driver: DriverLibrary) -> LibraryStandIn:
    """Returns the object that stands in for libcudart.

    Args:
        simulation: The simulated GPUs.
        driver: The simulated driver, which allocates and copies memory.
    """
    return LibraryStandIn(
        "cuda", _functions(simulation, driver), lambda _: lambda *_: _NOT_SUPPORTED
    )


def _functions(simulation: Simulation, driver: DriverLibrary) -> dict[str, Callable[..., Any]]:
    lib = simulation.library.lib

    def size(of: Any) -> ctypes.c_size_t:
        return ctypes.c_size_t(number(of))

    def copy(to: Any, source: Any, count: Any, kind: Any) -> int:
        del kind  # the addresses determine the direction of the copy
        assume("cudaMemcpy", _NO_VALUES)
        return int(driver.cuMemcpy(size(to), size(source), size(count)))

    def give_device(device: Any) -> int:
        pointee(device).value = lib.plimsoll_current_device()
        return _SUCCESS

    def text(name: str) -> Callable[[Any], bytes]:
        def explain(status: Any) -> bytes:
            found = ctypes.c_char_p()
            driver[name](number(status), ctypes.byref(found))
            return found.value or b"unrecognized error code"

        return explain

    return {
        "cudaSetDevice": lambda device: 101 if lib.plimsoll_set_device(number(device)) else 0,
        "cudaGetDevice": give_device,
        "cudaGetDeviceCount": lambda count: driver.cuDeviceGetCount(count),
        "cudaDeviceSynchronize": lambda: driver.cuCtxSynchronize(),
        "cudaGetLastError": lambda: _SUCCESS,
        "cudaPeekAtLastError": lambda: _SUCCESS,
        "cudaGetErrorName": text("cuGetErrorName"),
        "cudaGetErrorString": text("cuGetErrorString"),
        "cudaRuntimeGetVersion": lambda version: driver.cuDriverGetVersion(version),
        "cudaDriverGetVersion": lambda version: driver.cuDriverGetVersion(version),
        "cudaMemGetInfo": lambda free, total: driver.cuMemGetInfo_v2(free, total),
        "cudaMalloc": lambda address, count: driver.cuMemAlloc_v2(address, size(count)),
        "cudaFree": lambda address: driver.cuMemFree_v2(size(address)),
        "cudaMemset": lambda address, value, count: driver.cuMemsetD8_v2(
            size(address), number(value), size(count)
        ),
        "cudaMemcpy": copy,
    }
