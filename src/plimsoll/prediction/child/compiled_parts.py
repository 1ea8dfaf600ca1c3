"""Observes compiled code without PyTorch's hooks, which the compiler would compile too."""

from __future__ import annotations

import functools
import weakref
from types import CellType
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.torch.simulated.compiled.frames import let_through

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.base.watchers import Watchers


def watch_calls(
    torch: ModuleType,
    before: Callable[[Any, tuple[Any, ...]], None],
    after: Callable[[Any], object],
) -> None:
    """Calls `before` ahead of each call of a module, and `after` when the call has returned.

    `before` gets the module and the arguments of the call; `after` gets the result. Both
    must handle their own errors. Calls in compiled code are left out.

    PyTorch's global module hooks would change the compiled code. So `watch_calls` replaces
    `Module.__call__` instead, which leaves the compiled code as it is. Dynamo reads
    `Module.__call__` only once, when Dynamo is imported. It traces the functions that the
    replacement calls, but not the replacement.
    """
    kind = torch.nn.Module
    call_module = kind.__call__

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return call_module(self, *arguments, **named)
        before(self, arguments)
        result = call_module(self, *arguments, **named)
        after(result)
        return result

    let_through(call)
    kind.__call__ = call


def watch_compiled(
    torch: ModuleType,
    watchers: Watchers,
    note_module: Callable[[weakref.ref[Any]], object],
    before_step: Callable[[Any], None],
    after_step: Callable[[Any], None],
    steps_of: Callable[[Any], int],
) -> None:
    """Observes modules and optimizer steps that are compiled from now on; hooks do not see them.

    Args:
        torch: The module.
        watchers: The object that keeps errors of the functions below from the program.
        note_module: Called with each compiled module.
        before_step: Called with an optimizer, before its compiled step.
        after_step: Called with an optimizer, after its compiled step. It is not called if Dynamo
            gave up on compiling the step, because PyTorch's hooks have reported the step then.
        steps_of: Returns the number of completed steps of an optimizer.
    """
    compile_any, compile_module = torch.compile, torch.nn.Module.compile

    def look(model: Any) -> list[Any]:
        """Notes a compiled module. Returns the optimizers that a compiled function may step."""
        if isinstance(model, torch.nn.Module):
            note_module(weakref.ref(model))
            return []
        return _stepped(model, torch.optim.Optimizer)

    def begin(model: Any, stepped: list[Any]) -> list[tuple[Any, int, int]]:
        before = [(optimizer, steps_of(optimizer), _changes(optimizer)) for optimizer in stepped]
        if getattr(model, "__self__", None) in stepped:
            before_step(*stepped)
        return before

    def end(before: list[tuple[Any, int, int]] | None) -> None:
        for optimizer, count, changes in before or ():
            if steps_of(optimizer) == count and _changes(optimizer) != changes:
                after_step(optimizer)

    look_guarded = watchers.guarded("what is compiled", look)
    begin_guarded = watchers.guarded("the begin of compiled steps", begin)
    end_guarded = watchers.guarded("the end of compiled steps", end)

    def watched(model: Any, compiled: Any) -> Any:
        stepped = look_guarded(model)
        if not stepped:
            return compiled

        def call(*arguments: Any, **named: Any) -> Any:
            before = begin_guarded(model, stepped)
            result = compiled(*arguments, **named)
            end_guarded(before)
            return result

        return standing_in(compiled, call)

    def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001  as PyTorch calls it
        if model is None:
            return functools.partial(compile, **options)
        return watched(model, compile_any(model, **options))

    def compile_in_place(module: Any, *arguments: Any, **named: Any) -> Any:
        look_guarded(module)
        return compile_module(module, *arguments, **named)

    torch.compile = standing_in(compile_any, compile)  # type: ignore[attr-defined]
    torch.nn.Module.compile = standing_in(compile_module, compile_in_place)


def _changes(optimizer: Any) -> int:
    """Returns a number that grows with each write to the optimizer's parameters."""
    return sum(p._version for group in optimizer.param_groups for p in group["params"])


def _stepped(function: Any, kind: type) -> list[Any]:
    """Returns the optimizers that a function may step.

    For an optimizer's own `step` method, the result is that optimizer. For another function whose
    code contains the name `step`, the result is every optimizer that its code refers to.
    """
    of = getattr(function, "__self__", None)
    if isinstance(of, kind):
        return [of] if function.__name__ == "step" else []
    code = getattr(function, "__code__", None)
    if code is None or "step" not in code.co_names:
        return []
    cells = (cell.cell_contents for cell in function.__closure__ or () if cell != CellType())
    used = (function.__globals__.get(name) for name in code.co_names)
    held = getattr(of, "__dict__", {})
    holders = (held[name] for name in code.co_names if name in held)
    found = {id(each): each for each in (*cells, *used, *holders) if isinstance(each, kind)}
    return list(found.values())
