"""Runs torch_memory_saver's default mode without LD_PRELOAD.

On real GPUs this mode sets LD_PRELOAD for processes that the program starts. On a machine without
NVIDIA's driver such a process would not start, because the preloaded library needs libcuda.so.1.
So on simulated GPUs PLIMSOLL_LD_PRELOAD names the library instead.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.preloaded import VARIABLE, preloaded_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


def preload_by_plimsoll(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads the module of torch_memory_saver's default mode, and makes it use plimsoll's variable.

    See `hooks/mode_preload.py` of torch_memory_saver.
    """
    execute()

    @contextmanager
    def configure_subprocess() -> Iterator[None]:
        path = module.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
        with module.change_env(VARIABLE, str(path)):
            yield

    find = module.HookUtilModePreload.get_path_binary

    def get_path_binary(self: Any) -> str:
        own = [path for path in preloaded_paths() if "torch_memory_saver" in path]
        return own[0] if own else find(self)

    module.configure_subprocess = configure_subprocess  # type: ignore[attr-defined]
    module.HookUtilModePreload.get_path_binary = get_path_binary
