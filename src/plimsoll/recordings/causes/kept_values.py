"""Finds in the source which statement of a loop keeps a value, and writes its replacement.

A recording names only lines. The line that requested the memory either keeps the value itself, as
`losses.append(loss_of(x))` does, or gives it a name that another statement of the loop keeps.
"""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TENSORS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp)
_PLAIN = ("item", "detach", "cpu", "tolist", "numpy", "len", "float", "int")
"""Functions and methods whose results keep no GPU memory or no autograd graph."""
_WITHOUT_GRAPH = ("argmax", "argmin", "argsort", "bincount", "bool", "dim", "eq", "ge", "gt", "le",
                  "long", "lt", "ne", "nonzero", "numel", "sign", "size")  # fmt: skip
"""Methods and functions whose results have no grad_fn."""
_LONGEST = 100
_Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True)
class KeptValue:
    """The changed statement, and whether it keeps a number.

    Attributes:
        patch: The statement as it should be.
        is_number: Whether it keeps a Python number; False for a tensor without a graph.
    """

    patch: str
    is_number: bool


def kept_value(line: str, *, is_number: bool | None) -> KeptValue | None:
    """Finds the statement that keeps a line's result, and returns how to change this statement.

    Args:
        line: The line, as "FILE:LINE FUNCTION".
        is_number: Whether the line's result has a single element; None if unknown. If unknown, a
            result that is added to a sum counts as a number, and one that is appended to a list
            counts as a tensor.

    Returns:
        None if the source is not there, or no statement of a loop around the line keeps the value.
    """
    place = re.match(r"(.+):(\d+)(?: |$)", line)
    if place is None or not place[1].endswith(".py"):
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(place[1])))
        found = [
            _changed(statement, value, is_number=is_number if is_loss is None else is_loss)
            for loop in _loops_around(tree, int(place[2]))
            for statement, value, is_loss in _kept_at(loop, int(place[2]))
        ]
    except (SyntaxError, ValueError, RecursionError):
        return None
    return next((one for one in found if len(one.patch) <= _LONGEST), None)


def _loops_around(tree: ast.Module, line: int) -> list[_Loop]:
    """Returns the loops whose text includes a line, the innermost first."""
    loops = [node for node in ast.walk(tree) if isinstance(node, _Loop) and _has(node, line)]
    return sorted(loops, key=lambda loop: -loop.lineno)


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _kept_at(loop: _Loop, line: int) -> list[tuple[ast.stmt, ast.expr, bool | None]]:
    """Returns the statements that keep the value that a line makes, or a loss computed from it.

    These are the statements on the line itself. If it has none, they are the statements that keep
    a name assigned by the line. If there are none either, they are the statements that keep a loss:
    for example, the line assigns `output`, and a later line computes `loss` from `output`.

    Returns:
        A tuple for each statement, in the order of the text: the statement, the value that it
        keeps, and a bool or None. True means a loss that is known to be a number. False means
        any other loss. None means the line's own result.
    """
    kept = sorted(_keeping(loop), key=lambda each: each[0].lineno)
    own = [each for each in kept if _has(each[0], line)]
    if own:
        return [(*each, None) for each in own]
    assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign)]
    names = {name for node in assigned if _has(node, line) for name in _targets(node)}
    direct = [each for each in kept if isinstance(each[1], ast.Name) and each[1].id in names]
    if direct:
        return [(*each, None) for each in direct]
    losses: dict[str, bool] = {}
    for node in sorted(assigned, key=lambda node: node.lineno):
        if node.lineno <= line:
            continue
        uses, is_number = _uses(node.value, {*names, *losses}), _loss(node.value)
        for name in _targets(node):
            names.discard(name)  # the name has another value from here on
            losses.pop(name, None)
            if uses and is_number is not None:
                losses[name] = is_number
    return [
        (statement, value, losses[value.id])
        for statement, value in kept
        if isinstance(value, ast.Name) and value.id in losses
    ]


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _uses(node: ast.AST, names: set[str]) -> bool:
    """Returns whether an expression's result has the graph of one of the named values."""
    match node:
        case ast.Name(name):
            return name in names
        case ast.Compare() | ast.Attribute(attr="shape" | "ndim" | "dtype" | "device" | "data"):
            return False
        case ast.Call(ast.Attribute(attr=name)) | ast.Call(ast.Name(name)):
            if name in _PLAIN or name in _WITHOUT_GRAPH:
                return False
    return any(_uses(child, names) for child in ast.iter_child_nodes(node))


def _loss(value: ast.expr) -> bool | None:
    """Returns whether an expression is a loss that is a number; None if it is no loss.

    A function with "loss" or "entropy" in its name may return a loss for each sample.
    """
    while isinstance(value, ast.BinOp):  # such as a loss divided by a number of parts
        value = value.left
    match value:
        case ast.Call(ast.Attribute(attr="mean" | "sum"), [], []):
            return True
        case ast.Call(ast.Attribute(attr=name)) | ast.Call(ast.Name(name)):
            return False if re.search("loss|entropy|criterion", name) else None
    return None


def _keeping(loop: _Loop) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yields the statements that append a value to a list or add it to a sum, and the value."""
    for node in ast.walk(loop):
        value: ast.expr | None = None
        match node:
            case ast.Expr(ast.Call(ast.Attribute(attr="append"), [only], [])):
                value = only
            case ast.AugAssign(op=ast.Add(), value=added):
                value = added
            case ast.Assign([target], ast.BinOp(left, ast.Add(), right)):
                value = right if ast.unparse(left) == ast.unparse(target) else None
        if isinstance(node, ast.stmt) and isinstance(value, _TENSORS) and not _is_plain(value):
            yield node, value


def _is_plain(value: ast.expr) -> bool:
    match value:
        case ast.Call(ast.Attribute(attr=name)) | ast.Call(ast.Name(name)):
            return name in _PLAIN
    return False


def _changed(statement: ast.stmt, value: ast.expr, *, is_number: bool | None) -> KeptValue:
    is_sum = not isinstance(statement, ast.Expr)
    number = is_sum if is_number is None else is_number
    methods = ["item"] if number else ["detach"] if is_sum else ["detach", "cpu"]
    if ".detach()" in ast.unparse(value):
        methods = [method for method in methods if method != "detach"]
    changed = value
    for method in methods:
        changed = ast.Call(ast.Attribute(changed, method, ast.Load()), [], [])
    match statement:
        case ast.Expr(ast.Call() as call):
            text = f"{ast.unparse(call.func)}({ast.unparse(changed)})"
        case ast.Assign([target], ast.BinOp(left)):
            text = f"{ast.unparse(target)} = {ast.unparse(left)} + {ast.unparse(changed)}"
        case ast.AugAssign(target):
            text = f"{ast.unparse(target)} += {ast.unparse(changed)}"
        case _:
            text = ast.unparse(changed)
    return KeptValue(text, number)
