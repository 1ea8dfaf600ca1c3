"""Replaces a compiled library's kernels that need a GPU, as soon as the library is loaded."""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll.torch.building.cuda_stand_ins import stand_in_for
from plimsoll.torch.simulated.compiled.settings import compiled_folder
from plimsoll.torch.simulated.libraries.operations import register_kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_Loaded = TypeVar("_Loaded")


def watch_loading(torch: ModuleType, simulation: Simulation) -> None:
    """Replaces CUDA kernels: PyTorch's now, and those of each library when it is loaded.

    It also lets a PyTorch without CUDA load libraries that were compiled for CUDA.
    """
    load_library, create_module = torch.ops.load_library, ExtensionFileLoader.create_module
    take_over = simulation.library.lib.plimsoll_take_over_operators

    def load(path: Any) -> None:
        loaded(lambda: load_library(path), path)
        take_over()
        register_kernels(simulation)

    def create(loader: Any, spec: Any) -> Any:
        module = loaded(lambda: create_module(loader, spec), spec.origin)
        take_over()
        register_kernels(simulation)
        return module

    register_kernels(simulation)
    torch.ops.load_library = load
    ExtensionFileLoader.create_module = create  # type: ignore[assignment, method-assign]


def loaded(load: Callable[[], _Loaded], path: Any) -> _Loaded:
    """Calls `load` until it succeeds. Makes a stand-in for each shared library that is missing."""
    while True:
        try:
            return load()
        except (ImportError, OSError) as error:
            # A trial may change real files in this folder (prediction/scratch.py).
            if not stand_in_for(error, Path(path), compiled_folder()):
                raise
