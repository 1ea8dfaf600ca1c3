"""Predicts a program's number of steps from the loops around its step.

The loops are in the functions on the call stack at the end of a step. They are `for` loops over a
range, a loader or a list, which may be wrapped in `enumerate` or in a progress bar such as tqdm's.
plimsoll reads the variables of these functions, and calls no code of the program. For a Trainer of
transformers, plimsoll reads the number of steps from the Trainer's state.
"""

from __future__ import annotations

import ast
import linecache
import operator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.program_frames import program_frames, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import FrameType

_DIVIDE = operator.floordiv
_BARS = ("tqdm", "track", "trange")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _DIVIDE,
}


@dataclass(frozen=True)
class _Place:
    """The progress of a loop: iteration `index` of `count`; `index` is None if unknown."""

    index: int | None
    count: int


def planned_steps(frame: FrameType | None, runners: Collection[str], done: int) -> int | None:
    """Returns the number of steps of the whole run; None if the loops do not determine it.

    Args:
        frame: The innermost frame at the end of a step.
        runners: Files whose code runs the program and is not part of it.
        done: The number of steps that have ended.
    """
    places: list[_Place] = []  # the outermost loop first
    for each in program_frames(frame, runners):
        variables = variables_of(each)
        state = state_of_trainer(variables)
        if state is not None:
            return max(int(state.max_steps), done)
        loops = [_place(loop, variables, each.f_globals) for loop in loops_at(each)]
        if None in loops:
            return None
        places = [place for place in loops if place is not None] + places
    if not places:
        return None
    total, position = 1, 0
    for place in places:
        total *= place.count
    if position < 0 or total < 1:
        return None
    if places[-1].index is None:
        # The innermost loop's progress is unknown: assume one step in each of its iterations.
        return max(total, done)
    for place in places:
        if place.index is None:
            return None
        position = position * place.count + place.index
    return max(round(done * total / (position + 1)), done)


def state_of_trainer(variables: Mapping[str, Any]) -> Any:
    """Returns the state of the Trainer whose method has these local variables.

    Returns None if the variables belong to another function, or if the state has no number of
    steps.
    """
    own = variables.get("self")
    state = _attribute(_attribute(own, "trainer"), "state") or _attribute(own, "state")
    steps = _attribute(state, "max_steps")
    return state if isinstance(steps, int) and steps > 0 else None


def loader_of(loop: ast.For, frame: FrameType) -> Any:
    """Returns the loader that a loop iterates over; None if it iterates over something else.

    The loop may wrap the loader in `enumerate` or in a progress bar.
    """
    over: ast.expr = loop.iter
    while isinstance(over, ast.Call) and over.args and _called(over) in ("enumerate", *_BARS):
        over = over.args[0]
    value = _value(over, variables_of(frame), frame.f_globals)
    value = value if _is_loader(value) else _attribute(value, "iterable")  # the loader inside tqdm
    return value if _is_loader(value) else None


def _attribute(value: Any, name: str) -> Any:
    """Returns an attribute from the object's `__dict__`, without running code of the program."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def loops_at(frame: FrameType) -> list[ast.For | ast.While]:
    """Returns the loops around a frame's current line, the outermost first."""
    line, code = frame.f_lineno, frame.f_code
    loops = [
        loop
        for loop, function in _loops_of(code.co_filename)
        if function == (None if code.co_name == "<module>" else code.co_firstlineno)
        and loop.body[0].lineno <= line <= (loop.body[-1].end_lineno or 0)
    ]
    return sorted(loops, key=lambda loop: loop.lineno)


@cache
def _loops_of(filename: str) -> list[tuple[ast.For | ast.While, int | None]]:
    """Returns the loops of a file, each with the first line of its function.

    The first line of a function is that of its first decorator, as in a code object. For a loop
    outside a function it is None.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return []
    found: list[tuple[ast.For | ast.While, int | None]] = []

    def visit(node: ast.AST, function: int | None) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = min(each.lineno for each in [node, *node.decorator_list])
        if isinstance(node, (ast.For, ast.While)):
            found.append((node, function))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, None)
    return found


def _place(
    loop: ast.For | ast.While, variables: Mapping[str, Any], names: Mapping[str, Any]
) -> _Place | None:
    """Returns the progress of a loop; None if its number of iterations is unknown."""
    if isinstance(loop, ast.While):
        return None
    over, target = loop.iter, loop.target

    def value(node: ast.expr) -> Any:
        return _value(node, variables, names)

    is_numbered, first = False, 0
    while isinstance(over, ast.Call) and over.args:
        name = _called(over)
        if name == "enumerate" and isinstance(target, ast.Tuple) and not is_numbered:
            is_numbered, target = True, target.elts[0]
            start = over.args[1] if len(over.args) > 1 else None
            start = next((each.value for each in over.keywords if each.arg == "start"), start)
            first = 0 if start is None else value(start)
        elif name in ("range", "trange"):
            bounds = [value(each) for each in over.args]
            if not all(type(each) is int for each in bounds):
                return None
            rounds, index = range(*bounds), value(target)
            if is_numbered:
                return _numbered(index, first, len(rounds))
            is_in = type(index) is int and index in rounds
            return _Place(rounds.index(index), len(rounds)) if is_in else None
        elif name not in _BARS:
            return None
        over = over.args[0]
    count = _length(value(over))
    if not count:
        return None
    return _numbered(value(target) if is_numbered else None, first, count)


def _numbered(index: Any, first: Any, count: int) -> _Place:
    """Returns the progress of a loop over `enumerate(..., first)`.

    `index` is the number that `enumerate` gave to the current iteration; None if unknown.
    """
    return _Place(index - first if _are_whole(index, first) else None, count)


def _are_whole(*values: Any) -> bool:
    return all(type(each) is int for each in values)


def _value(node: ast.expr, variables: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
    """Returns the value of a name, an attribute, a number or a sum; None if unknown."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return variables.get(node.id, names.get(node.id))
        case ast.Attribute():
            return _attribute(_value(node.value, variables, names), node.attr)
        case ast.Call(func=ast.Name(id="len"), args=[of]):
            return _length(_value(of, variables, names))
        case ast.BinOp():
            left, right = (_value(each, variables, names) for each in (node.left, node.right))
            kind = _OPERATORS.get(type(node.op))
            if kind is None or not _are_whole(left, right) or (right == 0 and kind is _DIVIDE):
                return None
            return kind(left, right)
    return None


def _length(value: Any) -> int | None:
    """Returns the length of a list, a range or PyTorch's loader; None for anything else."""
    if type(value) in (list, tuple, range, dict) or _is_loader(value):
        try:
            return len(value)
        # A loader's length calls the data set's `__len__`, which may raise any error.
        except Exception:
            return None
    return None


def _is_loader(value: Any) -> bool:
    return any(
        each.__module__ == "torch.utils.data.dataloader" and each.__name__ == "DataLoader"
        for each in type(value).__mro__
    )
