"""The changes that recognised causes ask for: a graph that is not kept, a load onto the host."""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import calls_of, last_name
from plimsoll.prediction.fitting.script_text import CannotChangeError
from plimsoll.recordings.analysis.lines import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey
    from plimsoll.recordings.causes.cause import Cause

_PLAIN = ("item", "size", "len", "detach", "cpu", "numel", "tolist")
"""The last calls of values that hold no graph."""


def cause_changes(survey: Survey, _: int = 0) -> Iterator[Change]:
    """Yield the change of each cause that has one in the script itself."""
    for cause in survey.causes:
        if cause.name in _EDITS:
            short, edit = _EDITS[cause.name]
            yield Change(
                cause.name,
                cause.change,
                short=short,
                edit=partial(edit, cause),
                order=-1,
                saves_bytes=cause.bytes,
            )


def own_causes(script: Path, causes: Iterable[Cause]) -> list[Cause]:
    """The causes that are about a line of the script itself, or about no line."""
    begin = f"{short_path(str(script))}:"
    return [each for each in causes if each.line is None or each.line.startswith(begin)]


def line_of(cause: Cause) -> int:
    """The line of the script as it is that a cause is about.

    Raises:
        CannotChangeError: If it is about none.
    """
    place = (cause.line or "").rpartition(" ")[0].rpartition(":")[2]
    if not place.isdecimal():
        raise CannotChangeError("no line of the script is known for it")
    return int(place)


def _statement(cause: Cause, script: ScriptText) -> ast.stmt:
    block, place = script.statements(script.now(line_of(cause)))[-1]
    return block[place]


def _without_grad(cause: Cause, script: ScriptText) -> ScriptText:
    statement = _statement(cause, script)
    return script.wrap(statement, statement, "with torch.no_grad():").importing("torch")


def _onto_the_host(cause: Cause, script: ScriptText) -> ScriptText:
    statement = _statement(cause, script)
    for name, setting in (("load", "map_location"), ("load_file", "device")):
        for call in calls_of([statement], name):
            return script.replace(call, with_settings(script, call, {setting: '"cpu"'}))
    raise CannotChangeError("a library loads the checkpoint, not the script")


def _without_cache(_: Cause, script: ScriptText) -> ScriptText:
    for call in calls_of(script.tree.body, "autocast"):
        return script.replace(call, with_settings(script, call, {"cache_enabled": "False"}))
    raise CannotChangeError("a library begins autocast, not the script")


def _without_search(_: Cause, script: ScriptText) -> ScriptText:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(
            "cudnn.benchmark"
        ):
            return script.replace(node.value, "False")
    raise CannotChangeError("a library sets cudnn.benchmark, not the script")


def _block_by_block(_: Cause, script: ScriptText) -> ScriptText:
    for call in calls_of(script.tree.body, "checkpoint"):
        if len(call.args) > 1 and not isinstance(call.args[0], ast.Lambda):
            model, *given = map(script.text_of, call.args)
            named = [f"{each.arg}={script.text_of(each.value)}" for each in call.keywords]
            parts = ", ".join([model, f"len({model})", *given, *named])
            changed = f"torch.utils.checkpoint.checkpoint_sequential({parts})"
            return script.replace(call, changed).importing("torch")
    raise CannotChangeError("a library makes the checkpoint, not the script")


def _letting_go(cause: Cause, script: ScriptText) -> ScriptText:
    """Keep no graph of what loops sum up, nor on the card what they collect."""
    if cause.patch.startswith("total"):
        return _each_replaced(script, _summed, ".detach()")
    line = line_of(cause)
    return _each_replaced(script, lambda tree: _collected(tree, line), ".detach().cpu()")


def _each_replaced(
    script: ScriptText, find: Callable[[ScriptText], Iterator[ast.expr]], ending: str
) -> ScriptText:
    """Give each found expression an ending; texts change, so one is found at a time."""
    was = script
    while (value := next(find(script), None)) is not None:
        text = script.text_of(value)
        is_simple = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        script = script.replace(value, (text if is_simple else f"({text})") + ending)
    if script is was:
        raise CannotChangeError("the script sums up or collects nothing in such a loop")
    return script


def _summed(script: ScriptText) -> Iterator[ast.expr]:
    """Yields the values that loops without a backward pass add to a variable, or to a list."""
    for loop in ast.walk(script.tree):
        if not isinstance(loop, ast.For | ast.While) or any(calls_of(loop.body, "backward")):
            continue
        for node in ast.walk(loop):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                yield from _with_graph(node.value)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                if ast.unparse(node.value.left) == ast.unparse(node.targets[0]):
                    yield from _with_graph(node.value.right)
            elif isinstance(node, ast.Call) and last_name(node.func) == "append":
                yield from (each for value in node.args for each in _with_graph(value))


def _collected(script: ScriptText, line: int) -> Iterator[ast.expr]:
    """Yields the values that the innermost loop around a line appends to lists.

    The line is one of the script as it is.
    """
    around = [block[place] for block, place in script.statements(script.now(line))]
    loop = next((each for each in reversed(around) if isinstance(each, ast.For | ast.While)), None)
    for node in ast.walk(around[-1] if loop is None else loop):
        if isinstance(node, ast.Call) and last_name(node.func) == "append":
            yield from (each for value in node.args for each in _with_graph(value))


def _with_graph(value: ast.expr) -> Iterator[ast.expr]:
    """The value, unless it is plain already."""
    if isinstance(value, ast.Constant):
        return
    if isinstance(value, ast.Call) and last_name(value.func) in _PLAIN:
        return
    yield value


_EDITS: dict[str, tuple[str, Callable[[Cause, ScriptText], ScriptText]]] = {
    "unused_activations": ("no_grad", _without_grad),
    "kept_over_passes": ("no graph kept", _letting_go),
    "loaded_checkpoint": ("checkpoint on the host", _onto_the_host),
    "autocast_cache": ("no cache of autocast", _without_cache),
    "search_of_plans": ("no search of plans", _without_search),
    "whole_model_checkpoint": ("checkpoints by block", _block_by_block),
}
"""By the cause's name: the change in short, and how it is made."""
