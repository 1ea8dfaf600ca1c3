"""The changes that remove recognised causes of memory use, such as a kept autograd graph."""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import calls_of, last_name
from plimsoll.prediction.fitting.script_text import CannotChangeError
from plimsoll.recordings.analysis.lines import short_path
from plimsoll.recordings.causes.kept_over_passes import NO_GRAD, keeps_graph
from plimsoll.recordings.causes.kept_values import BACKWARD_INSIDE
from plimsoll.recordings.causes.wording import first_and_last

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey
    from plimsoll.recordings.causes.cause import Cause

_MODEL_AND_INPUT = 2
_MOST_VALUES = 100
_TENSORS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp, ast.IfExp)
_PLAIN = (
    *("item", "size", "len", "detach", "cpu", "numel", "tolist", "numpy"),
    *("float", "int", "str", "round", "bool", "format", "join", "time", "perf_counter"),
)
"""The functions and methods whose results hold no autograd graph."""


def cause_changes(survey: Survey, _: int = 0) -> Iterator[Change]:
    """Yields the change for each cause that a change of the script can remove."""
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
    """Returns the causes whose line is in the script itself, and those without a line."""
    begin = f"{short_path(str(script))}:"
    return [each for each in causes if each.line is None or each.line.startswith(begin)]


def line_of(cause: Cause) -> int:
    """Returns a cause's line in the unchanged script.

    Raises:
        CannotChangeError: If the cause has no line.
    """
    return _lines_of(cause)[0]


def _lines_of(cause: Cause) -> tuple[int, int]:
    """Returns the first and the last of a cause's lines, in the unchanged script."""
    found = first_and_last(cause.line)
    if found is None:
        raise CannotChangeError("no line of the script is known for it")
    return found[1:]


def _statement(cause: Cause, script: ScriptText) -> ast.stmt:
    block, place = script.statements(script.now(line_of(cause)))[-1]
    return block[place]


def _without_grad(cause: Cause, script: ScriptText) -> ScriptText:
    if cause.patch != NO_GRAD:
        raise CannotChangeError("training runs every line that keeps the graph")
    first, last = map(script.now, _lines_of(cause))
    around, behind = script.statements(first), script.statements(last)
    # The innermost block that contains both lines is wrapped, from the statement with the first
    # line to the statement with the last line. An `if` and its `else` are different blocks.
    block, begin = around[0]
    end = begin
    for (mine, of_first), (other, of_last) in zip(around, behind, strict=False):
        if mine is not other:
            break
        block, begin, end = mine, of_first, of_last
        if begin != end:
            break
    return script.wrap(block[begin], block[end], NO_GRAD).importing("torch")


def _onto_the_host(cause: Cause, script: ScriptText) -> ScriptText:
    statement = _statement(cause, script)
    for name, setting in (("load", "map_location"), ("load_file", "device")):
        for call in calls_of([statement], name):
            return script.replace(call, with_settings(script, call, {setting: '"cpu"'}))
    raise CannotChangeError("a library loads the checkpoint, not the script")


def _onto_own_card(cause: Cause, script: ScriptText) -> ScriptText:
    if cause.patch.startswith("torch.load"):
        return _onto_the_host(cause, script)
    if not cause.patch:
        raise CannotChangeError("a thread chooses the card")
    return script.at_top(["", cause.patch]).importing("os", "torch")


def _without_cache(cause: Cause, script: ScriptText) -> ScriptText:
    around = [block[place] for block, place in script.statements(script.now(line_of(cause)))]
    blocks = [each for each in around if isinstance(each, ast.With)]
    headers = [ast.Expr(item.context_expr) for block in blocks for item in block.items]
    for call in calls_of([*headers], "autocast"):
        return script.replace(call, with_settings(script, call, {"cache_enabled": "False"}))
    raise CannotChangeError("no autocast of the script is around it")


def _without_search(_: Cause, script: ScriptText) -> ScriptText:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(
            "cudnn.benchmark"
        ):
            return script.replace(node.value, "False")
    raise CannotChangeError("a library sets cudnn.benchmark, not the script")


def _block_by_block(_: Cause, script: ScriptText) -> ScriptText:
    calls = [
        call
        for call in calls_of(script.tree.body, "checkpoint")
        if len(call.args) == _MODEL_AND_INPUT and not isinstance(call.args[0], ast.Lambda)
    ]
    if len(calls) != 1:
        raise CannotChangeError("the script does not call checkpoint(model, x) in one place")
    model, given = map(script.text_of, calls[0].args)
    named = [f"{each.arg}={script.text_of(each.value)}" for each in calls[0].keywords]
    parts = ", ".join([model, f"len({model})", given, *named])
    changed = f"torch.utils.checkpoint.checkpoint_sequential({parts})"
    return script.replace(calls[0], changed).importing("torch")


def _letting_go(cause: Cause, script: ScriptText) -> ScriptText:
    """Changes the script so that a loop no longer keeps GPU memory from each iteration.

    If the loop keeps an autograd graph that no backward pass uses, the cause's line is put under
    `torch.no_grad`. If it keeps another graph, the values that it sums up or appends to lists are
    detached. For any other cause, the appended values are detached and moved to the host.
    """
    if cause.patch == NO_GRAD:
        return _without_grad(cause, script)
    if not cause.patch or cause.patch.endswith(BACKWARD_INSIDE):
        raise CannotChangeError("a later backward pass may need the graph that the loop keeps")
    if _hands_on(cause.patch):
        raise CannotChangeError("detaching what a pass hands to the next cuts its gradients")
    line = line_of(cause)
    if keeps_graph(cause):
        find, ending = _summed, ".detach()"
    else:
        is_cut = ".detach()" in cause.patch
        find, ending = _collected, ".detach().cpu()" if is_cut else ".cpu()"
    was = script
    for _ in range(_MOST_VALUES):
        # Each edit changes the text, so every round searches the new text for the next value.
        value = next(find(_loop_around(script, line)), None)
        if value is None:
            break
        text = script.text_of(value)
        is_simple = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        script = script.replace(value, (text if is_simple else f"({text})") + ending)
    if script is was:
        raise CannotChangeError("the loop sums up or collects nothing that is seen")
    return script


def _hands_on(patch: str) -> bool:
    """Returns whether a patch detaches a state that a pass of a loop hands to the next pass."""
    match ast.parse(patch).body:
        case [ast.Assign(value=ast.Call() | ast.Tuple())]:
            return True
    return False


def _loop_around(script: ScriptText, line: int) -> ast.For | ast.While:
    """Returns the innermost loop around a line of the unchanged script."""
    for block, place in reversed(script.statements(script.now(line))):
        found = block[place]
        if isinstance(found, ast.For | ast.While):
            return found
    raise CannotChangeError(f"line {line} is in no loop of its function")


def _summed(loop: ast.For | ast.While) -> Iterator[ast.expr]:
    """Yields the values that a loop adds to a variable, or to a list."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield from _with_graph(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            is_sum = isinstance(node.value.op, ast.Add)
            if is_sum and ast.unparse(node.value.left) == ast.unparse(node.targets[0]):
                yield from _with_graph(node.value.right)
    yield from _collected(loop)


def _collected(loop: ast.For | ast.While) -> Iterator[ast.expr]:
    """Yields the values that a loop appends to lists."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and last_name(node.func) == "append":
            yield from (each for value in node.args for each in _with_graph(value))


def _with_graph(value: ast.expr) -> Iterator[ast.expr]:
    """Yields the value if it may hold an autograd graph."""
    if not isinstance(value, _TENSORS):
        return
    if isinstance(value, ast.Call) and last_name(value.func) in _PLAIN:
        return
    yield value


_EDITS: dict[str, tuple[str, Callable[[Cause, ScriptText], ScriptText]]] = {
    "unused_activations": ("no_grad", _without_grad),
    "kept_over_passes": ("no graph kept", _letting_go),
    "loaded_checkpoint": ("checkpoint on the host", _onto_the_host),
    "ranks_on_one_card": ("each rank on its own card", _onto_own_card),
    "autocast_cache": ("no cache of autocast", _without_cache),
    "search_of_plans": ("no search of plans", _without_search),
    "whole_model_checkpoint": ("checkpoints by block", _block_by_block),
}
"""For each cause's name: a short name of the change, and the function that makes the change."""
