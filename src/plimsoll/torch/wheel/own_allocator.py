"""Builds and loads a library that calls PyTorch's own allocator.

A cache keeps the built library, and each process loads it only once.

A program's `import torch` loads libc10_cuda with NVIDIA's CUDA runtime, and a link namespace holds
only one libc10_cuda. plimsoll's library needs a second one that calls the simulated GPUs. So
plimsoll loads its library into a new link namespace (dlmopen), which gets a second libc10_cuda and
a second C library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.torch.building import versions
from plimsoll.torch.building.compiler import Recipe, build

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent
_LIBRARY = Recipe(
    name="wheel-allocator",
    purpose="PyTorch's own allocator",
    sources=_HERE / "csrc",
    flags=("-O2", f"-I{_HERE}/csrc"),
    libraries=("c10_cuda", "c10"),
    needs_cuda=True,
    exports=_HERE / "exports.map",
)
_NEW_NAMESPACE = -1  # LM_ID_NEWLM of dlfcn.h
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def require_cuda_build() -> None:
    """Refuses a PyTorch without a CUDA allocator.

    Raises:
        InputError: If PyTorch is not installed, or if it is a build without CUDA.
    """
    if not versions.is_cuda_build():
        raise InputError(
            "--allocator wheel takes the allocator of a CUDA build of PyTorch; "
            f"{versions.torch_build()} is a build without CUDA"
        )


@cache
def own_allocator() -> int:
    """Returns the address of the allocator's table of functions, a plimsoll_wheel_api.

    Raises:
        InputError: If this PyTorch is a build without CUDA, if its allocator cannot be loaded, or
            if `build` raises it.
    """
    require_cuda_build()
    path = build(_LIBRARY)
    system = ctypes.CDLL(None)
    system.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
    system.dlmopen.restype = system.dlsym.restype = ctypes.c_void_p
    system.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    system.dlerror.restype = ctypes.c_char_p
    with _without_settings():
        library = system.dlmopen(_NEW_NAMESPACE, os.fsencode(path), os.RTLD_NOW)
    if library is None:
        raise InputError(f"PyTorch's own allocator cannot be loaded: {system.dlerror().decode()}")
    table = ctypes.CFUNCTYPE(ctypes.c_void_p)(system.dlsym(library, b"plimsoll_wheel"))
    return int(table())


@cache
def allocator_of_unknown() -> int:
    """Returns the result of `own_allocator` if plimsoll does not know the installed PyTorch.

    Returns 0 in all other cases; the caller then uses plimsoll's own rules. The other cases are a
    PyTorch that plimsoll knows, a build without CUDA, and a failure of `own_allocator`. After a
    failure, a line on stderr gives the reason.

    Raises:
        InputError: If PyTorch is not installed, or too old.
    """
    if not is_unknown_cuda_build():
        return 0
    try:
        return own_allocator()
    except InputError as error:
        print(f"plimsoll: {error}; the nearest known rules serve instead", file=sys.stderr)
        return 0


def build_ahead(*, is_asked_for: bool) -> None:
    """Builds the library before a script's process starts, if that process will need it.

    The script's process could build the library too. But if plimsoll discards the files that this
    process writes, the library would not stay in the cache.

    Args:
        is_asked_for: Whether the user chose PyTorch's own allocator. If not, this builds the
            library only for a CUDA build of PyTorch that plimsoll does not know.

    Raises:
        InputError: If `is_asked_for` is true and `build` raises it. Also if `is_asked_for` is false
            and PyTorch is not installed, or too old.
    """
    if is_asked_for:
        build(_LIBRARY)
    elif is_unknown_cuda_build():
        with suppress(InputError):  # `allocator_of_unknown` prints the error
            build(_LIBRARY)


def is_unknown_cuda_build() -> bool:
    """Returns whether the installed PyTorch is a CUDA build that plimsoll does not know.

    Raises:
        InputError: If PyTorch is not installed, or too old.
    """
    return not versions.is_known() and versions.is_cuda_build()


@contextmanager
def _without_settings() -> Iterator[None]:
    """Hides the environment's allocator settings from PyTorch's allocator, while dlmopen loads it.

    plimsoll itself gives that allocator the settings that matter.
    """
    hidden = {name: os.environ.pop(name) for name in _SETTINGS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
