"""Stands in for kernels that NVIDIA's CuTe DSL compiles from Python, like those of FlashInfer.

Nothing is compiled. Such a kernel takes no memory, because its callers allocate all tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.source_kernels import launch_unknown_kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def stand_in_for_kernels(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `cutlass.base_dsl.compiler`, and makes `cute.compile` return stand-ins."""
    execute()

    def compile_nothing(self: Any, function: Any, *_: Any, **__: Any) -> Callable[..., None]:
        del self
        name = getattr(function, "__qualname__", type(function).__qualname__)

        def launch(*arguments: Any, **named: Any) -> None:
            launch_unknown_kernel(f"CuTe kernel {name}", (arguments, named))

        return launch

    module.CompileCallable._compile = compile_nothing
