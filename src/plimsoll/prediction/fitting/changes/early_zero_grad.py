"""The change that frees gradients as soon as they are no longer needed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import OptimizerUse, Survey


def gradient_changes(survey: Survey, _: int = 0) -> Iterator[Change]:
    """Yields the change that frees gradients right after the optimizer's step.

    Yields nothing if the gradients are already gone when the model is called for the next step.
    """
    if len(survey.optimizers) != 1:
        return
    (use,) = survey.optimizers
    if use.keeps_gradients and use.stepped is not None:
        yield Change(
            "gradients",
            "free the gradients right after the optimizer's step",
            short="gradients freed early",
            edit=lambda script: _freed(script, use),
            saves_bytes=use.gradient_bytes,
        )


def _freed(script: ScriptText, use: OptimizerUse) -> ScriptText:
    assert use.stepped is not None
    block, place = script.statements(script.now(use.stepped.line))[-1]
    statement = block[place]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        raise CannotChangeError("the optimizer's step is no statement of its own")
    name = _optimizer(script, call)
    after = statement
    if place + 1 < len(block) and _is_update(block[place + 1]):
        after = block[place + 1]
    return script.insert_after(after, [f"{name}.zero_grad(set_to_none=True)"])


def _optimizer(script: ScriptText, call: ast.Call) -> str:
    """Returns the optimizer's name, as in "optimizer.step()" or "scaler.step(optimizer)"."""
    if call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
        return script.text_of(call.args[0])
    if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
        return script.text_of(call.func.value)
    raise CannotChangeError("no variable of the script holds the optimizer")


def _is_update(statement: ast.stmt) -> bool:
    """Returns whether a statement updates a gradient scaler, as scripts do after the step."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr == "update"
    )
