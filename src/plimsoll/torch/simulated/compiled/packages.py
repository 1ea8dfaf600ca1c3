"""Packages of AOTInductor launch kernels outside Python, where nothing here hears of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_MAKES_THEM = {
    "torch._inductor.compile_fx": "compile_fx_aot",
    "torch._inductor.package.package": "load_package",
}
REFUSING = tuple(_MAKES_THEM)
"""The modules that are loaded by `refuse_packages`."""


def refuse_packages(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load one of `REFUSING`, which then makes and loads no package."""
    execute()

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            "plimsoll does not simulate packages of AOTInductor, which launch kernels outside "
            "Python: run the exported program itself (program.module()), or with torch.compile"
        )

    setattr(module, _MAKES_THEM[module.__name__], refuse)
