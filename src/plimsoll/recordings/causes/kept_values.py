"""Finds in the source which statement of a loop keeps a value, and writes its replacement.

A recording names only lines. The line that requested the memory either keeps the value itself, as
`losses.append(loss_of(x))` does, or gives it a name that another statement of the loop keeps.
"""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.recordings.causes.handed_states import Loop as _Loop
from plimsoll.recordings.causes.handed_states import (
    handed_on,
    hands_on,
    is_backward,
    is_in_forward,
    only_backward_follows,
)
from plimsoll.recordings.causes.value_uses import Use, use_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_TENSORS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp)
_PLAIN = ("item", "detach", "cpu", "tolist", "numpy", "len", "float", "int")
"""Functions and methods whose results have no autograd graph, or lie in host memory (`cpu`)."""
_WITHOUT_GRAPH = ("argmax", "argmin", "argsort", "bincount", "bool", "dim", "eq", "ge", "gt", "le",
                  "long", "lt", "ne", "nonzero", "numel", "sign", "size")  # fmt: skip
"""Methods and functions whose results have no grad_fn."""
_LONGEST = 100
BACKWARD_INSIDE = "  # in each pass"
"""The end of a patch that moves a backward pass into the loop."""
_NEEDED = "run backward for fewer passes at a time: gradients computed from {} need these graphs"
_PERHAPS_NEEDED = "if no gradients are computed from {} later, keep that there without its graph"


@dataclass(frozen=True)
class KeptValue:
    """The changed statement, and whether it keeps a number.

    Attributes:
        patch: The statement as it should be; "" if the source does not show a safe change.
        is_number: Whether it keeps a Python number; False for a tensor without a graph.
        change: The change in words; "" if `is_number` alone determines the words.
        line: The number of the statement's line; None if unknown.
    """

    patch: str
    is_number: bool
    change: str = ""
    line: int | None = None


@dataclass(frozen=True)
class _Place:
    """A statement that keeps a value, and the loop in which it runs."""

    loop: _Loop
    statement: ast.stmt


def kept_value(line: str, *, is_number: bool | None, has_graph: bool = True) -> KeptValue | None:
    """Finds the statement that keeps a line's result, and returns how to change this statement.

    Args:
        line: The line, as "FILE:LINE FUNCTION".
        is_number: Whether the line's result has a single element; None if unknown. If unknown, a
            result that is added to a sum counts as a number, and one that is appended to a list
            counts as a tensor.
        has_graph: Whether the result may have an autograd graph.

    Returns:
        None if the source is not there, or no statement of a loop around the line keeps the value.
    """
    source = _source(line)
    if source is None:
        return None
    tree, number = source
    try:
        found = [
            replace(
                _changed(
                    tree,
                    _Place(loop, statement),
                    value,
                    is_number=is_number if is_loss is None else is_loss,
                    has_graph=has_graph,
                ),
                line=statement.lineno,
            )
            for loop in _loops_around(tree, number)
            for statement, value, is_loss in _kept_at(loop, number)
            if not (_is_local(statement) and is_in_forward(tree, loop))
        ]
    except (ValueError, RecursionError):
        return None
    return next((one for one in found if len(one.patch) <= _LONGEST), None)


def handed_value(line: str) -> KeptValue | None:
    """Finds the tensors that a line computes and that each pass of a loop hands to the next pass.

    The graphs of such tensors keep the memory of all earlier passes.

    Args:
        line: The line, as "FILE:LINE FUNCTION".

    Returns:
        How to cut these graphs. The patch is empty if a name may refer to a tuple of tensors, or if
        the only backward pass comes after the loop and may need the graphs. None if plimsoll finds
        no such tensor or backward pass, or if the loop is in a module's forward pass.
    """
    source = _source(line)
    if source is None:
        return None
    tree, number = source
    loops = _loops_around(tree, number)
    if not loops or is_in_forward(tree, loops[0]):
        return None
    states = handed_on(tree, loops[0], number)
    if not states and any(only_backward_follows(tree, loop) for loop in loops):
        return KeptValue("", is_number=False, change=_PERHAPS_NEEDED.format("this loop's results"))
    if not states:
        return None
    names = [state.name for state in states]
    ends = "before the next pass (gradients end at that point)"
    if all(state.is_tensor for state in states):
        patch = f"{', '.join(names)} = {', '.join(f'{name}.detach()' for name in names)}"
        change = f"detach what each pass hands to the next, {ends}"
        return KeptValue(patch, is_number=False, change=change)
    named = " and ".join(f"`{name}`" for name in names)
    return KeptValue("", is_number=False, change=f"detach each tensor of {named} {ends}")


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
    direct = [
        each
        for each in kept
        if (name := _scaled_name(each[1])) in names and _reaches(assigned, name, line, each[0])
    ]
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
    """Returns "loss" for `loss`, `loss / 4` and `loss * 4`; "" for a value without such a name."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div | ast.Mult):
        value = value.left
    return value.id if isinstance(value, ast.Name) else ""


def _targets(node: ast.Assign) -> list[str]:
    """Returns the names that a statement assigns, also those of `a, b = f(), g()`."""
    parts = [
        part
        for target in node.targets
        for part in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _reaches(assigned: list[ast.Assign], name: str, line: int, statement: ast.stmt) -> bool:
    """Returns whether a name still has the value of `line` where a statement of the loop uses it.

    A statement above `line` uses the value in the next pass.

    Args:
        assigned: The assignments of the loop.
        name: The name.
        line: The number of the line that assigns it.
        statement: The statement that uses it.
    """
    others = [node.lineno for node in assigned if name in _targets(node) and not _has(node, line)]
    use = statement.lineno
    if use > line:
        return not any(line < other < use for other in others)
    return not any(other < use or other > line for other in others)


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
    """Returns True for a loss that is known to be a number, False for any other loss.

    Returns None for an expression that is no loss. A function with "loss", "entropy" or "criterion"
    in its name may return a loss for each sample.
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
    tree: ast.Module, place: _Place, value: ast.expr, *, is_number: bool | None, has_graph: bool
) -> KeptValue:
    statement, kept = place.statement, _kept_in(place.statement)
    is_sum = not isinstance(statement, ast.Expr)
    is_number = is_sum if is_number is None else is_number
    use = Use.UNKNOWN if kept is None else use_of(tree, statement, kept)
    is_spent = _runs_backward(place.loop, statement, value)
    if use is Use.UNKNOWN and is_spent:
        use = Use.AS_TENSOR
    if use is Use.IN_BACKWARD and (is_spent or not is_number or hands_on(place.loop)):
        use = Use.IN_GRADIENT
    named = "the values" if kept is None else f"`{ast.unparse(kept)}`"
    match use:
        case Use.IN_BACKWARD:
            patch = f"{_in_parentheses(value)}.backward()"
            change = f"call backward in each pass, not once for {named[1:-1]}: gradients add up"
            return KeptValue(patch + BACKWARD_INSIDE, is_number=False, change=change)
        case Use.IN_GRADIENT:
            return KeptValue("", is_number=False, change=_NEEDED.format(named))
        case Use.UNKNOWN if has_graph or is_number or is_sum:
            return KeptValue("", is_number=False, change=_PERHAPS_NEEDED.format(named))
    methods = ["item"] if is_number and use is Use.AS_NUMBER else ["detach"]
    if not is_number and not is_sum:
        methods = ["cpu"] if use is Use.UNKNOWN else ["detach", "cpu"]
    return KeptValue(_statement_with(statement, value, methods), methods == ["item"])


def _in_parentheses(value: ast.expr) -> str:
    text = ast.unparse(value)
    is_simple = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return text if is_simple else f"({text})"


def _statement_with(statement: ast.stmt, value: ast.expr, methods: list[str]) -> str:
    """Returns the text of a statement that keeps a value, after applying `methods` to the value.

    For example, `losses.append(loss)` becomes `losses.append(loss.item())`.
    """
    if ".detach()" in ast.unparse(value):
        methods = [method for method in methods if method != "detach"]
    changed = value
    for method in methods:
        changed = ast.Call(ast.Attribute(changed, method, ast.Load()), [], [])
    match statement:
        case ast.Expr(ast.Call() as call):
            return f"{ast.unparse(call.func)}({ast.unparse(changed)})"
        case ast.Assign([target], ast.BinOp(left)):
            return f"{ast.unparse(target)} = {ast.unparse(left)} + {ast.unparse(changed)}"
        case ast.AugAssign(target):
            return f"{ast.unparse(target)} += {ast.unparse(changed)}"
    return ast.unparse(changed)


def _runs_backward(loop: _Loop, statement: ast.stmt, value: ast.expr) -> bool:
    """Returns whether each pass of a loop runs a backward pass from the value that it keeps.

    Such a backward pass frees the graph, so no later one can need it.
    """
    name = _scaled_name(value)
    calls = [node for node in _always(loop.body) if name and is_backward(node)]
    for call in calls:
        if any(each.arg in ("retain_graph", "create_graph") for each in call.keywords):
            continue
        first, last = sorted((call.lineno, statement.lineno))
        between = [
            node
            for node in ast.walk(loop)
            if isinstance(node, ast.Assign) and first < node.lineno < last
        ]
        names = {part.id for part in ast.walk(call) if isinstance(part, ast.Name)}
        if name in names and not any(name in _targets(node) for node in between):
            return True
    return False


def _always(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yields the calls that are statements of their own and that each pass makes."""
    for statement in body:
        match statement:
            case ast.Expr(ast.Call() as call):
                yield call
            case ast.With(body=inside) | ast.AsyncWith(body=inside):
                yield from _always(inside)


def _is_local(statement: ast.stmt) -> bool:
    """Returns whether a statement adds to a plain name, such as a local variable."""
    return isinstance(_kept_in(statement), ast.Name)


def _kept_in(statement: ast.stmt) -> ast.expr | None:
    """Returns the sum or the list to which a statement adds a value."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(kept))) | ast.Assign([kept]) | ast.AugAssign(kept):
            return kept
    return None
