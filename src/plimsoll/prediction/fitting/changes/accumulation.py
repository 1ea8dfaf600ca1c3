"""Divides the batch and accumulates gradients, through the script's options or its Trainer."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.sites import last_name
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import ArgumentUse, Survey

_BATCH = re.compile(
    r"--?(per[-_]device[-_])?((micro|train)[-_])*batch([-_]?size)?(|[-_]per[-_]gpu)"
)
_STEPS = re.compile(r"--?(gradient|grad)?[-_]?accum\w*([-_]\w+)*")
_TRAINER_BATCH, _TRAINER_STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
_TRAINER_DEFAULT = 8


def options_for(survey: Survey, parts: int) -> tuple[tuple[str, str], ...]:
    """Returns the options that divide the script's batch, and their values for `parts` parts.

    One option sets the batch size, the other sets the accumulation steps. Returns an empty tuple if
    the script lacks one of these options, or if the batch is not divisible.
    """
    batch = next(_known(survey.arguments, _BATCH), None)
    steps = next(_known(survey.arguments, _STEPS), None)
    if batch is None or steps is None or batch[1] % parts:
        return ()
    return (batch[0], str(batch[1] // parts)), (steps[0], str(max(1, steps[1]) * parts))


def _known(arguments: list[ArgumentUse], pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    for use in arguments:
        for name in use.names:
            is_number = isinstance(use.value, int) and not isinstance(use.value, bool)
            if is_number and pattern.fullmatch(name):
                assert isinstance(use.value, int)
                yield name, use.value


def has_trainer(script: ScriptText) -> bool:
    """Returns whether the script calls Transformers' `TrainingArguments` or a class like it."""
    return next(_trainer_calls(script), None) is not None


def trainer_in_parts(script: ScriptText, parts: int) -> ScriptText:
    """Returns the script with a Trainer that divides its batch and accumulates over `parts` parts.

    If the batch is an expression, such as `args.batch_size`, the division is added to it.

    Raises:
        CannotChangeError: If there is no Trainer, or its batch is a number that is not divisible.
    """
    call = find_trainer_call(script)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    batch = _number(given.get(_TRAINER_BATCH), _TRAINER_DEFAULT)
    steps = _number(given.get(_TRAINER_STEPS), 1)
    if batch is not None and batch % parts:
        raise CannotChangeError(f"a batch of {batch} does not divide into {parts} parts")
    changed = {
        _TRAINER_BATCH: f"{_operand(script, given[_TRAINER_BATCH])} // {parts}"
        if batch is None
        else str(batch // parts),
        _TRAINER_STEPS: f"{_operand(script, given[_TRAINER_STEPS])} * {parts}"
        if steps is None
        else str(steps * parts),
    }
    return script.replace(call, with_settings(script, call, changed))


def find_trainer_call(script: ScriptText) -> ast.Call:
    """Finds the call with which the script makes the arguments of a Trainer.

    Raises:
        CannotChangeError: If there is no such call.
    """
    call = next(_trainer_calls(script), None)
    if call is None:
        raise CannotChangeError("the script makes no arguments of a Trainer")
    return call


def _trainer_calls(script: ScriptText) -> Iterator[ast.Call]:
    for call in (node for node in ast.walk(script.tree) if isinstance(node, ast.Call)):
        named = any(keyword.arg == _TRAINER_BATCH for keyword in call.keywords)
        if named or last_name(call.func).endswith("TrainingArguments"):
            yield call


def _operand(script: ScriptText, value: ast.expr) -> str:
    text = script.text_of(value)
    return text if isinstance(value, ast.Name | ast.Attribute) else f"({text})"


def _number(value: ast.expr | None, default: int) -> int | None:
    """Returns the number that an expression states; `default` if there is no expression.

    None if the expression is not a plain number.
    """
    if value is None:
        return default
    if isinstance(value, ast.Constant) and isinstance(value.value, int):
        return value.value
    return None
