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

from plimsoll.recordings.causes.value_uses import Use, handed_on, use_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_TENSORS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp)
_PLAIN = ("item", "detach", "cpu", "tolist", "numpy", "len", "float", "int")
"""Functions and methods whose results keep no GPU memory or no autograd graph."""
_WITHOUT_GRAPH = ("argmax", "argmin", "argsort", "bincount", "bool", "dim", "eq", "ge", "gt", "le",
                  "long", "lt", "ne", "nonzero", "numel", "sign", "size")  # fmt: skip
"""Methods and functions whose results have no grad_fn."""
_LONGEST = 100
BACKWARD_INSIDE = "  # in each pass"
"""The end of a patch that moves a backward pass into the loop."""
_Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True)
class KeptValue:
    """The changed statement, and whether it keeps a number.

    Attributes:
        patch: The statement as it should be.
        is_number: Whether it keeps a Python number; False for a tensor without a graph.
        change: The change in words; "" where `is_number` says it.
    """

    patch: str
    is_number: bool
    change: str = ""


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
    source = _source(line)
    if source is None:
        return None
    tree, number = source
    try:
        found = [
            _changed(tree, statement, value, is_number=is_number if is_loss is None else is_loss)
            for loop in _loops_around(tree, number)
            for statement, value, is_loss in _kept_at(loop, number)
        ]
    except (ValueError, RecursionError):
        return None
    return next((one for one in found if len(one.patch) <= _LONGEST), None)


def handed_value(line: str) -> KeptValue | None:
    """Finds the tensors by which each pass of a loop around a line keeps the pass before it.

    Args:
        line: The line, as "FILE:LINE FUNCTION".

    Returns:
        How to cut their graph. None if the source is not there, or hands on nothing.
    """
    source = _source(line)
    if source is None:
        return None
    for loop in _loops_around(*source):
        names = handed_on(loop)
        if names:
            patch = f"{', '.join(names)} = {', '.join(f'{name}.detach()' for name in names)}"
            change = "detach what each pass hands to the next, before it is used there"
            return KeptValue(patch, is_number=False, change=change)
    return None


def _source(line: str) -> tuple[ast.Module, int] | None:
    """Returns the parsed file of a line, and the line's number; None if there is no such file."""
    place = re.match(r"(.+):(\d+)(?: |$)", line)
    if place is None or not place[1].endswith(".py"):
        return None
    try:
        return ast.parse("".join(linecache.getlines(place[1]))), int(place[2])
    except (SyntaxError, ValueError, RecursionError):
        return None


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
    direct = [each for each in kept if _scaled_name(each[1]) in names]
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
    found: list[tuple[ast.stmt, ast.expr, bool | None]] = []
    for statement, value in kept:
        name = _scaled_name(value)
        is_loss = losses.get(name) if name else _loss(value)
        if is_loss is not None and (name or _uses(value, {*names, *losses})):
            found.append((statement, value, is_loss))
    return found


def _scaled_name(value: ast.expr) -> str:
    """Returns the name of a value, also of a loss that is divided by a number; else ""."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div | ast.Mult):
        value = value.left
    return value.id if isinstance(value, ast.Name) else ""


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


def _changed(
    tree: ast.Module, statement: ast.stmt, value: ast.expr, *, is_number: bool | None
) -> KeptValue:
    is_sum = not isinstance(statement, ast.Expr)
    kept = _kept_in(statement)
    use = Use.AS_NUMBER if kept is None else use_of(_scope(tree, statement, kept), kept)
    if kept is not None and use is Use.IN_BACKWARD:
        patch = f"({ast.unparse(value)}).backward()"
        if isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            patch = f"{ast.unparse(value)}.backward()"
        change = f"call backward in each pass, not once for {ast.unparse(kept)}: gradients add up"
        return KeptValue(patch + BACKWARD_INSIDE, is_number=False, change=change)
    number = (is_sum if is_number is None else is_number) and use is Use.AS_NUMBER
    methods = ["item"] if number else ["detach"] if is_sum or is_number else ["detach", "cpu"]
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


def _scope(tree: ast.Module, statement: ast.stmt, kept: ast.expr) -> ast.AST:
    """Returns the part of a program in which a variable has its meaning."""
    if not isinstance(kept, ast.Name):
        return tree
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _has(node, statement.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=tree)


def _kept_in(statement: ast.stmt) -> ast.expr | None:
    """Returns the sum or the list to which a statement adds a value."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(kept))) | ast.Assign([kept]) | ast.AugAssign(kept):
            return kept
    return None
