"""Refuses packages of AOTInductor: plimsoll cannot see kernels launched outside Python."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

REFUSING = {
    "torch._inductor.compile_fx": "compile_fx_aot",
    "torch._inductor.package.package": "load_package",
}
"""For each module to change, the name of its function that makes or loads a package."""
_CODE = (".cubin", ".fatbin", ".ptx")


def refuse_packages(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads a module of `REFUSING`, and makes the module's function refuse packages for GPUs."""
    execute()
    name = REFUSING[module.__name__]
    function = getattr(module, name, None)
    if function is None:
        return

    def call(first: Any, *arguments: Any, **named: Any) -> Any:
        if _is_for_gpus(first, *arguments):
            raise NotImplementedError(
                "plimsoll does not simulate packages of AOTInductor, which launch kernels outside "
                "Python: run the exported program itself (program.module()), or with torch.compile"
            )
        return function(first, *arguments, **named)

    setattr(module, name, call)


def _is_for_gpus(first: Any, *arguments: Any) -> bool:
    """Returns whether a graph or its inputs have GPU tensors, or a package has GPU code."""
    import torch

    if isinstance(first, torch.nn.Module):
        inputs = arguments[0] if arguments else ()
        tensors = [*first.parameters(), *first.buffers(), *inputs]
        return any(getattr(tensor, "is_cuda", False) for tensor in tensors)
    with suppress(OSError, zipfile.BadZipFile, TypeError), zipfile.ZipFile(first) as package:
        return any(name.endswith(_CODE) for name in package.namelist())
    return False
