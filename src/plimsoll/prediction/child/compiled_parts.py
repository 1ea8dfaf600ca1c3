"""Watching what a program compiles: a compiler would take hooks for parts of the program."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.frames import let_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


def outside_compilers(
    torch: ModuleType, *hooks: Callable[..., None]
) -> Iterator[Callable[..., None]]:
    """The same hooks, which a compiler that traces its program finds to be empty."""

    def outside(hook: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if not torch.compiler.is_compiling():
                hook(*arguments)

        return call

    return map(outside, hooks)


def watch_calls(torch: ModuleType, before: Callable[[Any, tuple[Any, ...]], None]) -> None:
    """Call `before` with each module that is called, and its arguments; not with compiled ones.

    PyTorch's own hooks for all modules would change what is compiled. Dynamo takes the call that it
    finds when it is imported for that of all modules, and looks at what is below it.
    """
    kind = torch.nn.Module
    call_module = kind.__call__

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            before(self, arguments)
        return call_module(self, *arguments, **named)

    let_through(call)
    kind.__call__ = call


def watch_compiled(
    torch: ModuleType,
    note_module: Callable[[weakref.ref[Any]], object],
    before_step: Callable[[Any], None],
    after_step: Callable[[Any], None],
) -> None:
    """Hear of what is compiled from now on, since hooks say nothing of it.

    Args:
        torch: The module.
        note_module: Called with each module that is compiled.
        before_step: Called with an optimizer, before its compiled step.
        after_step: The same, after it.
    """
    compile_any, compile_module = torch.compile, torch.nn.Module.compile

    def watched(model: Any, compiled: Any) -> Any:
        if isinstance(model, torch.nn.Module):
            note_module(weakref.ref(model))
        optimizer = getattr(model, "__self__", None)
        if not isinstance(optimizer, torch.optim.Optimizer) or model.__name__ != "step":
            return compiled

        @functools.wraps(compiled)
        def step(*arguments: Any, **named: Any) -> Any:
            before_step(optimizer)
            result = compiled(*arguments, **named)
            after_step(optimizer)
            return result

        return step

    @functools.wraps(compile_any)
    def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001  as PyTorch calls it
        if model is None:
            return functools.partial(compile, **options)
        return watched(model, compile_any(model, **options))

    @functools.wraps(compile_module)
    def compile_in_place(module: Any, *arguments: Any, **named: Any) -> None:
        note_module(weakref.ref(module))
        compile_module(module, *arguments, **named)

    torch.compile = compile  # type: ignore[attr-defined]
    torch.nn.Module.compile = compile_in_place
