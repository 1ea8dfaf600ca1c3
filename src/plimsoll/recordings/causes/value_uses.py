"""Finds in the source what a program does with a sum or a list that a loop fills."""

from __future__ import annotations

import ast
from enum import Enum

_JOINING = ("stack", "cat", "concat", "concatenate", "hstack", "vstack", "column_stack", "Tensor")
_OF_LISTS = ("append", "extend", "clear", "pop", "insert", "sort", "reverse", "count", "index")


class Use(Enum):
    """How a program uses a sum, or the elements of a list.

    Attributes:
        AS_NUMBER: Nothing that needs a tensor is seen.
        AS_TENSOR: The program calls methods of a tensor, or joins the elements to one.
        IN_BACKWARD: A backward pass runs from it, so its graph is needed.
    """

    AS_NUMBER = 0
    AS_TENSOR = 1
    IN_BACKWARD = 2


def use_of(tree: ast.AST, kept: ast.expr) -> Use:
    """Returns what a program does with a sum or a list.

    Args:
        tree: The program.
        kept: The variable, as the program writes it.
    """
    texts = {ast.unparse(kept)}
    for node in ast.walk(tree):
        # A loss made of the variable, such as `loss = torch.stack(losses).mean()`.
        match node:
            case ast.Assign(targets, value) if _sums_or_scales(value) and _has(value, texts):
                texts |= {ast.unparse(target) for target in targets}
    found = [_use(node, texts) for node in ast.walk(tree)]
    return max(found, key=lambda use: use.value)


def _sums_or_scales(value: ast.expr) -> bool:
    """Returns whether an expression sums up or scales values."""
    match value:
        case ast.BinOp(op=ast.Div() | ast.Mult()):
            return True
        case ast.Call(ast.Attribute(attr="mean" | "sum")) | ast.Call(ast.Name("sum")):
            return True
    return False


def _has(node: ast.AST, texts: set[str]) -> bool:
    """Returns whether a part of a node is one of the variables."""
    variables = (ast.Name, ast.Attribute, ast.Subscript)
    return any(
        isinstance(part, variables) and ast.unparse(part) in texts for part in ast.walk(node)
    )


def _use(node: ast.AST, texts: set[str]) -> Use:
    """Returns what one node of the program does with the variables."""
    match node:
        case ast.Call(ast.Attribute(value, "backward")) if _has(value, texts):
            return Use.IN_BACKWARD
        case ast.Call(ast.Attribute(attr=name), [first, *_]) if name in _JOINING:
            return Use.AS_TENSOR if ast.unparse(first) in texts else Use.AS_NUMBER
        case ast.Attribute(value, attr) if attr not in _OF_LISTS:
            while isinstance(value, ast.Subscript) and ast.unparse(value) not in texts:
                value = value.value
            return Use.AS_TENSOR if ast.unparse(value) in texts else Use.AS_NUMBER
        case ast.comprehension(ast.Name(name), over) | ast.For(ast.Name(name), over):
            # The element's own methods are seen as uses of the loop's variable.
            if ast.unparse(over) in texts:
                texts.add(name)
    return Use.AS_NUMBER


def handed_on(loop: ast.stmt) -> list[str]:
    """Returns the names by which a pass of a loop hands tensors to the next pass.

    Such a name is computed from its value in the pass before, as `h` in `h = cell(x, h)`. A name
    that each pass sets anew is none.
    """
    seen = {node.id for node in _stored(loop.target)} if isinstance(loop, ast.For) else set()
    handed: list[str] = []
    assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        used = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        names = [part.id for target in node.targets for part in _stored(target)]
        new = [name for name in names if name not in seen]
        seen.update(names)
        if any(isinstance(part, ast.Call) for part in ast.walk(node.value)):
            handed += [name for name in new if name in used]
    detached = {f"{name}.detach" for name in handed} & {
        ast.unparse(node) for node in ast.walk(loop) if isinstance(node, ast.Attribute)
    }
    return [name for name in handed if f"{name}.detach" not in detached]


def _stored(target: ast.expr) -> list[ast.Name]:
    return [part for part in ast.walk(target) if isinstance(part, ast.Name)]
