"""Watches the loading of compiled libraries, whose own kernels would need a GPU."""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll.torch.building.cuda_stand_ins import stand_in_for
from plimsoll.torch.simulated.libraries.operations import register_kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_Loaded = TypeVar("_Loaded")


def watch_loading(torch: ModuleType, simulation: Simulation) -> None:
    """Takes over the operations of PyTorch's own, and of each library that is loaded from now on.

    A library compiled for CUDA can also be loaded beside a PyTorch without CUDA.
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
    """Returns the result of `load`, once all needed libraries exist or have a stand-in."""
    while True:
        try:
            return load()
        except (ImportError, OSError) as error:
            if not stand_in_for(error, Path(path)):
                raise
