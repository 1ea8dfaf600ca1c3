"""Starts the simulation in a process, by hooks around the import of PyTorch.

`start` must run before PyTorch is imported, because PyTorch looks for its CUDA hooks only once.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.engine.current import set_engines
from plimsoll.torch.simulated import patches
from plimsoll.torch.simulated.compiled.modules import compiler_modules
from plimsoll.torch.simulated.cuda_functions import add_cuda_functions
from plimsoll.torch.simulated.flex_attention import add_fused_attention
from plimsoll.torch.simulated.libraries.missing_packages import stand_in
from plimsoll.torch.simulated.libraries.modules import library_modules
from plimsoll.torch.simulated.nvidia_smi import answer_nvidia_smi
from plimsoll.torch.simulated.opened_libraries import answer_by_ctypes
from plimsoll.torch.simulated.preloaded import use_preloaded_allocation
from plimsoll.torch.simulated.ranks.checkpoints import accept_missing_parts
from plimsoll.torch.simulated.ranks.process_groups import ProcessGroups

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


class _AroundImport(importlib.abc.MetaPathFinder):
    """An import hook that calls plimsoll's functions when chosen modules are imported.

    `actions` maps a module's name to a function. The hook calls the function instead of executing
    the module's code, and the function executes the code.
    """

    def __init__(
        self, actions: dict[str, Callable[[ModuleType, Callable[[], None]], None]]
    ) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        action = self._actions.get(name)
        if action is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            action(module, lambda: execute(module))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_running: Simulation | None = None


def running() -> Simulation | None:
    """Returns the simulation of this process; None if it has no simulated GPUs."""
    return _running


def start(simulation: Simulation, after_import: Callable[[ModuleType], None] | None = None) -> None:
    """Makes the next `import torch` see the simulated GPUs.

    Args:
        simulation: The GPUs.
        after_import: Called with the module `torch` once it is ready.

    Raises:
        InputError: If PyTorch is imported already.
    """
    if "torch" in sys.modules:
        raise InputError("PyTorch is imported already; simulate in a process of its own")

    def load_c(module: ModuleType, execute: Callable[[], None]) -> None:
        execute()
        add_cuda_functions(module, simulation)

    def load_torch(module: ModuleType, execute: Callable[[], None]) -> None:
        execute()
        simulation.library.install()
        patches.patch(module, simulation)
        simulation.watch_tiers()
        use_preloaded_allocation(simulation)
        simulation.torch_is_imported()
        if after_import is not None:
            after_import(module)

    groups = ProcessGroups(simulation)
    sys.meta_path.insert(
        0,
        _AroundImport(
            {
                **compiler_modules(simulation),
                **library_modules(simulation),
                "torch._C": load_c,
                "torch._meta_registrations": patches.keep_native_shape_functions,
                "torch.distributed.checkpoint.default_planner": accept_missing_parts,
                "torch.distributed.distributed_c10d": groups.load,
                "torch.nn.attention.flex_attention": add_fused_attention,
                "torch.utils.data._utils.collate": patches.stack_virtual_batches,
                "torch": load_torch,
            }
        ),
    )
    stand_in()
    answer_by_ctypes(simulation, groups)
    answer_nvidia_smi(simulation)
    global _running
    _running = simulation
    set_engines(simulation)
    atexit.register(simulation.end)
