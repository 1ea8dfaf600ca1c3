"""Lists the array libraries that plimsoll can serve, and makes them use plimsoll's engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from plimsoll.base.errors import InputError
from plimsoll.torch.array_libraries import cupy_arrays, numba_arrays, rmm_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plimsoll.torch.array_libraries.device_blocks import Memories

LibraryName = Literal["cupy", "numba", "rmm"]
"""The names of the libraries, as `plimsoll.install` takes them."""


@dataclass(frozen=True)
class _Library:
    title: str
    package: str  # the name for pip install
    check: Callable[[], None]
    serve: Callable[[Memories], None]


_LIBRARIES: dict[LibraryName, _Library] = {
    "cupy": _Library("CuPy", "cupy-cuda13x", cupy_arrays.check, cupy_arrays.serve),
    "numba": _Library("Numba", "numba-cuda[cu13]", numba_arrays.check, numba_arrays.serve),
    "rmm": _Library("RMM", "rmm-cu13", rmm_resources.check, rmm_resources.serve),
}
_served: set[LibraryName] = set()


def check_libraries(names: Collection[LibraryName]) -> None:
    """Imports the libraries and checks that plimsoll can serve them.

    Raises:
        InputError: If a library is missing, broken or too old, or has allocated memory already.
    """
    for name in names:
        if name in _served:
            continue
        library = _LIBRARIES[name]
        try:
            library.check()
        except ModuleNotFoundError as error:
            raise InputError(
                f"{library.title} is not installed here: pip install '{library.package}' ({error})"
            ) from None
        except ImportError as error:
            raise InputError(f"{library.title} cannot be imported: {error}") from None


def serve_libraries(names: Collection[LibraryName], memories: Memories) -> None:
    """Makes the named libraries take their memory from the engines in `memories`.

    Skips libraries that do so already. Call `check_libraries` first.
    """
    for name in names:
        if name not in _served:
            _LIBRARIES[name].serve(memories)
            _served.add(name)
