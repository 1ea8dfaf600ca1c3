"""Finds in the source the tensors that each pass of a loop hands to the next pass."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.recordings.causes.known_calls import BACKWARD
from plimsoll.recordings.causes.variables import parents_of, stored_names

if TYPE_CHECKING:
    from collections.abc import Iterator

Loop = ast.For | ast.AsyncFor | ast.While
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class State:
    """A name by which a pass of a loop hands a state to the next pass.

    Attributes:
        name: The name.
        is_tensor: Whether the state is taken for a single tensor; False if it may be a tuple.
    """

    name: str
    is_tensor: bool


def handed_on(tree: ast.Module, loop: Loop, line: int) -> list[State]:
    """Returns the states that a line computes from their values in the pass before.

    An example is `h` in `h = cell(x, h)`. The list is empty if the loop runs no backward pass, or
    if a backward pass follows the loop. Then the passes may be parts of one larger pass, such as
    the layers of a model, and gradients must flow between the passes.
    """
    if not _has_backward(loop) or _backward_follows(tree, loop):
        return []
    return [
        State(name, is_tensor=not is_unpacked and not _is_opened(tree, name))
        for node, name, is_unpacked in _states(loop)
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    ]


def hands_on(loop: Loop) -> bool:
    """Returns whether a pass of a loop may use a graph of the pass before."""
    return any(True for _ in _states(loop))


def is_backward(node: ast.AST) -> bool:
    """Returns whether a node calls a backward pass."""
    match node:
        case ast.Call(ast.Attribute(attr=name)) | ast.Call(ast.Name(name)):
            return name in BACKWARD
    return False


def only_backward_follows(tree: ast.Module, loop: Loop) -> bool:
    """Returns whether a backward pass follows a loop, and none runs inside it."""
    return _backward_follows(tree, loop) and not _has_backward(loop)


def _has_backward(loop: Loop) -> bool:
    return any(is_backward(node) for node in ast.walk(loop))


def _backward_follows(tree: ast.Module, loop: Loop) -> bool:
    """Returns whether a function calls a backward pass after one of its loops."""
    parents = parents_of(tree)
    scope: ast.AST = loop
    while not isinstance(scope, _Function | ast.Module):
        scope = parents[scope]
    end = loop.end_lineno or loop.lineno
    return any(is_backward(node) and getattr(node, "lineno", 0) > end for node in ast.walk(scope))


def is_in_forward(tree: ast.Module, loop: Loop) -> bool:
    """Returns whether a loop is part of a module's forward pass."""
    return any(
        isinstance(node, _Function)
        and node.name in ("forward", "__call__")
        and loop in set(ast.walk(node))
        for node in ast.walk(tree)
    )


def _states(loop: Loop) -> Iterator[tuple[ast.stmt, str, bool]]:
    """Yields the assignments of states, their names, and whether a tuple is unpacked there."""
    seen: set[str] = set()
    if isinstance(loop, ast.For | ast.AsyncFor):
        seen = {name for name, _ in stored_names(loop.target)}
    detached = {
        ast.unparse(node.value)
        for node in ast.walk(loop)
        if isinstance(node, ast.Attribute) and node.attr in ("detach", "detach_", "data")
    }
    assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign | ast.AnnAssign)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each for target in targets for each in stored_names(target)]
        passed = _passed(node.value)
        for name, depth in names:
            if name not in seen and name in passed and name not in detached:
                yield node, name, depth > 0
        seen.update(name for name, _ in names)


def _passed(value: ast.expr | None) -> set[str]:
    """Returns the variables in the arguments of a call.

    Returns none for calls of Python's own functions, such as `max` and `iter`. plimsoll assumes
    that they compute no states.
    """
    match value:
        case ast.Call(ast.Name(function)) if hasattr(builtins, function):
            return set()
        case ast.Call(args=args, keywords=keywords):
            given = [*args, *(each.value for each in keywords)]
            return {
                part.id for one in given for part in ast.walk(one) if isinstance(part, ast.Name)
            }
    return set()


def _is_opened(tree: ast.Module, name: str) -> bool:
    """Returns whether a program uses a variable as a container, such as a tuple or a dictionary.

    The program indexes, unpacks or iterates over the variable, or assigns a container to it.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ast.Name(found)) | ast.Starred(ast.Name(found)):
                if found == name:
                    return True
            case ast.For(iter=ast.Name(found)) | ast.comprehension(iter=ast.Name(found)):
                if found == name:
                    return True
            case ast.Assign([ast.Tuple()], ast.Name(found)):
                if found == name:
                    return True
            case ast.Assign(targets, ast.Tuple() | ast.Dict() | ast.List()):
                if any(name == one for each in targets for one, _ in stored_names(each)):
                    return True
    return False
