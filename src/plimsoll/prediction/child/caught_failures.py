"""Tells whether the code that caught a failed request would also have caught an earlier one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Frame = tuple[str, int, str]


def share_try(earlier: Sequence[Frame], failed: Sequence[Frame]) -> bool:
    """Returns whether a `try` statement is around two requests, in the same call of its function.

    A `with` statement of `contextlib.suppress` counts too. The result is False if a source file
    cannot be read.

    Args:
        earlier: The call stack of one request: file, line and function, innermost frame first.
        failed: The call stack of the other request.
    """
    for (file, line, function), (other_file, other_line, other_function) in zip(
        reversed(earlier), reversed(failed), strict=False
    ):
        if (file, function) != (other_file, other_function):
            return False
        if any(line in lines and other_line in lines for lines in _guarded_lines(file)):
            return True
        if line != other_line:
            return False
    return False


@cache
def _guarded_lines(file: str) -> list[range]:
    """Returns the lines of each body in a source file whose errors the program may catch."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        range(node.body[0].lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)) and _catches(node)
    ]


def _catches(node: ast.Try | ast.TryStar | ast.With | ast.AsyncWith) -> bool:
    if isinstance(node, (ast.Try, ast.TryStar)):
        return bool(node.handlers)
    return any("suppress" in ast.unparse(item.context_expr) for item in node.items)
