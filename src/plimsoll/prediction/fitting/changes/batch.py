"""Splits the batch into parts whose gradients add up to those of the whole."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes import accumulation, sites
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.script_text import CannotChangeError, first_line, own_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.fitting.changes.sites import Pass
    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey

_MOST_PARTS = 16


def batch_changes(survey: Survey, script: ScriptText) -> Iterator[Change]:
    """Yields changes that split the batch into 2, 4, … parts.

    Each change sets the script's options, changes its Trainer, or adds a loop to its text.

    Args:
        survey: The survey of the unchanged script.
        script: The script's text.
    """
    try:
        model = sites.trained(survey)
        is_trainer = accumulation.has_trainer(script)
    except CannotChangeError:
        return
    if model.batch is None:
        return
    by_part = "each part is normalized by its own statistics"
    notes = ["plimsoll assumes that the loss is a mean over the batch"]
    if model.has_dropout:
        notes.append("dropout draws other random numbers")
    if survey.ranks > 1:
        notes.append("ranks add up gradients after each part")
    parts = 2
    while model.batch % parts == 0 and parts <= _MOST_PARTS:
        options = accumulation.options_for(survey, parts)
        by = f" by {' '.join(f'{name} {value}' for name, value in options)}" if options else ""
        yield Change(
            "batch",
            f"run the batch of {model.batch} in {parts} parts{by}, and add up their gradients",
            short=f"batch in {parts} parts",
            edit=_edit(survey, parts, is_trainer=is_trainer, is_option=bool(options)),
            arguments=options,
            order=1,
            caveat=by_part if model.has_batch_statistics else "",
            note="; ".join(notes),
        )
        parts *= 2


def _edit(
    survey: Survey, parts: int, *, is_trainer: bool, is_option: bool
) -> Callable[[ScriptText], ScriptText]:
    if is_option:
        return lambda script: script
    if is_trainer:
        return lambda script: accumulation.trainer_in_parts(script, parts)
    return lambda script: _in_parts(script, survey, parts)


def _in_parts(script: ScriptText, survey: Survey, parts: int) -> ScriptText:
    script = _with_zero_grad_first(script, survey)
    found = sites.find_pass(script, survey)
    _check(script, found)
    names = _batch(found)
    if not names:
        raise CannotChangeError("no variable of the script holds the batch")
    loss = _loss(found)
    read_later = sites.names_read(_after(found))
    for name in sorted(sites.names_written(found.statements) - {loss}):
        if name in read_later and name not in sites.names_written(_after(found)):
            raise CannotChangeError(f"{name} is used after the backward pass")
    before = [f"whole_{name} = {name}" for name in names if name in read_later]
    after = [f"{name} = whole_{name}" for name in names if name in read_later]
    inside = []
    modules = ["plimsoll"]
    if loss in read_later:
        before.append("losses = []")
        inside.append(f"losses.append({loss}.detach())")
        after.append(f"{loss} = torch.stack(losses).mean()")
        modules.append("torch")
    script = _divided(script, _backward(found), parts)
    statements = sites.find_pass(script, survey).statements
    values = ", ".join(names)
    header = f"for {values} in plimsoll.split_batch({parts}, {values}):"
    script = script.wrap(
        statements[0], statements[-1], header, inside=inside, before=before, after=after
    )
    return script.importing(*modules)


def _with_zero_grad_first(script: ScriptText, survey: Survey) -> ScriptText:
    """Moves `zero_grad` before the first part, so that the parts' gradients add up."""
    found = sites.find_pass(script, survey)
    for statement in found.statements:
        if any(sites.calls_of([statement], "zero_grad")):
            if not isinstance(statement, ast.Expr):
                raise CannotChangeError("gradients are set to zero within the passes")
            return script.move_before(statement, first_line(found.statements[0]))
    return script


def _check(script: ScriptText, found: Pass) -> None:
    for name in ("step", "backward"):
        count = len(list(sites.calls_of(found.statements, name)))
        if name == "step" and count:
            raise CannotChangeError("the optimizer steps before backward() has ended")
        if name == "backward" and count != 1:
            raise CannotChangeError("backward() is called within what is called in this statement")
    text = " ".join(script.text_of(statement) for statement in found.statements)
    if 'reduction="sum"' in text or "reduction='sum'" in text:
        raise CannotChangeError("the loss is a sum, whose gradients would be divided")


def _batch(found: Pass) -> list[str]:
    """Returns the variables with the batch: those that the passes read and do not assign."""
    known = [*found.call.tensors, *found.call.mappings]
    read = sites.names_read(found.statements)
    return [
        name for name in known if name in read and name not in sites.names_written(found.statements)
    ]


def _backward(found: Pass) -> ast.Call:
    return next(sites.calls_of(found.statements, "backward"))


def _loss(found: Pass) -> str | None:
    """Returns the variable with the loss, such as "loss" in "scaler.scale(loss).backward()"."""
    call = _backward(found)
    assert isinstance(call.func, ast.Attribute)
    value: ast.expr = call.args[0] if call.args else call.func.value
    while isinstance(value, ast.Call | ast.BinOp):
        if isinstance(value, ast.BinOp):
            value = value.left
        elif value.args:
            value = value.args[0]
        else:
            return None
    return value.id if isinstance(value, ast.Name) else None


def _divided(script: ScriptText, call: ast.Call, parts: int) -> ScriptText:
    """Divides the loss of each part by the number of parts."""
    assert isinstance(call.func, ast.Attribute)
    value = call.args[0] if call.args else call.func.value
    return script.replace(value, f"({script.text_of(value)} / {parts})")


def _after(found: Pass) -> list[ast.stmt]:
    """Returns the function's statements after the forward and the backward pass."""
    last = found.statements[-1].end_lineno or 0
    return [each for each in own_statements(found.function) if each.lineno > last]
