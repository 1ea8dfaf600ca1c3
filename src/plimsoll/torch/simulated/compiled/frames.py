"""Keeps Dynamo away from plimsoll's own functions.

Most of these functions replace C++ code of PyTorch, which Dynamo cannot see. If a replacement ran
between two graphs, Dynamo would compile the replacement as a part of the program.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, ModuleType

_transparent: set[CodeType] = set()
_in_program: set[CodeType] = set()


def let_through(function: Callable[..., Any]) -> None:
    """Makes Dynamo skip a function, but compile the functions that it calls.

    Has no effect after Dynamo is imported.
    """
    _transparent.add(function.__code__)


def compile_too(function: Callable[..., Any]) -> None:
    """Lets Dynamo trace a function of plimsoll's.

    Has no effect after Dynamo is imported.
    """
    _in_program.add(function.__code__)


def leave_alone(module: ModuleType, execute: Callable[[], None]) -> None:  # noqa: ARG001
    """Loads `torch._dynamo.convert_frame`, and makes Dynamo skip plimsoll's functions."""
    execute()
    import torch

    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    for code in set(_own_codes()) - _in_program:
        below = default if code in _transparent else skip
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, below))


def _own_codes() -> Iterator[CodeType]:
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            yield from _codes_of(vars(module).values(), name)


def _codes_of(values: Any, module: str) -> Iterator[CodeType]:
    for value in list(values):
        if isinstance(value, type) and value.__module__ == module:
            yield from _codes_of(vars(value).values(), module)
            continue
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        code = getattr(function, "__code__", None)
        if code is not None:
            yield from _with_nested(code)


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _with_nested(constant)
