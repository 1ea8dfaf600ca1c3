"""CUDA's runtime (libcudart) for programs and libraries that open it by `ctypes`.

The functions call the simulated driver. If a program opens another library by `ctypes`, plimsoll
makes that library's calls of libcudart reach these functions too (opened_libraries.py). Other
extensions of a program still call CUDA's own functions. A function that is not simulated returns
the status "not supported".
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.torch.simulated.library_stand_in import LibraryStandIn

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulation import Simulation

PREFIX = "libcudart"
"""How names of the library's files begin: libcudart.so.13, or TileLang's libcudart_stub.so."""

_NOT_SUPPORTED = 801
_INT, _ANY, _SIZE = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
_PARAMETERS = {
    "cudaGetDevice": (_ANY,),
    "cudaSetDevice": (_INT,),
    "cudaGetDeviceCount": (_ANY,),
    "cudaDeviceSynchronize": (),
    "cudaStreamSynchronize": (_ANY,),
    "cudaRuntimeGetVersion": (_ANY,),
    "cudaDriverGetVersion": (_ANY,),
    "cudaGetLastError": (),
    "cudaPeekAtLastError": (),
    "cudaGetErrorName": (_INT,),
    "cudaGetErrorString": (_INT,),
    "cudaMemGetInfo": (_ANY, _ANY),
    "cudaMalloc": (_ANY, _SIZE),
    "cudaFree": (_ANY,),
    "cudaMemcpy": (_ANY, _ANY, _SIZE, _INT),
    "cudaMemcpyAsync": (_ANY, _ANY, _SIZE, _INT, _ANY),
    "cudaMemset": (_ANY, _INT, _SIZE),
    "cudaMemsetAsync": (_ANY, _INT, _SIZE, _ANY),
    "cudaMallocHost": (_ANY, _SIZE),
    "cudaHostAlloc": (_ANY, _SIZE, _INT),
    "cudaFreeHost": (_ANY,),
    "cudaHostRegister": (_ANY, _SIZE, _INT),
    "cudaHostUnregister": (_ANY,),
}
"""The types of each function's parameters; `_ANY` is the type of all pointers."""


def cudart_library(simulation: Simulation) -> LibraryStandIn:
    """Returns the object that stands in for libcudart.

    Args:
        simulation: The simulated GPUs. Call `driver_library` for them first.
    """
    functions = {name: _function(name, simulation) for name in _PARAMETERS}
    return LibraryStandIn("cuda", functions, lambda _: lambda *_: _NOT_SUPPORTED)


def _function(name: str, simulation: Simulation) -> Callable[..., Any]:
    result = ctypes.c_char_p if name.startswith("cudaGetErr") else _INT
    function = ctypes.CFUNCTYPE(result, *_PARAMETERS[name])(_core.cuda_function(name))

    def tell_size(*arguments: Any) -> Any:
        simulation.note_size_read()
        return function(*arguments)

    return tell_size if name == "cudaMemGetInfo" else function
