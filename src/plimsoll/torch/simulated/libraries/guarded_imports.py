"""Finds which names a Python file uses from a library, and the `try` statements around them.

A program that can do without a library catches the error of the import. Such a `try` is called a
guard here. If one name within a guard is missing, the program uses none of the names within this
guard. It always uses the names outside every guard.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
Guard = tuple[tuple[int, int], ...]
"""Lines of a file that Python either all runs or all skips, as pairs of a first and a last line.

A `try` makes two guards: one for its body and its `else`, and one for its handlers. The body of a
`with suppress(...)` is a guard. The imports under `if TYPE_CHECKING` are a guard, too. If the
library is installed, the handlers and the imports under `if TYPE_CHECKING` do not run.
"""


class Use(NamedTuple):
    """A name that a file uses.

    Attributes:
        name: The dotted name, such as "flash_attn.bert_padding.pad_input".
        line: The line that uses it.
        is_import: Whether the line imports the name.
    """

    name: str
    line: int
    is_import: bool


@dataclass
class Uses:
    """One file's uses of libraries, and the file's guards.

    Attributes:
        guards: The guards of the file, outer ones first.
        names: The names that the file uses from libraries, each with the line of its use.
    """

    guards: list[Guard] = field(default_factory=list)
    names: set[Use] = field(default_factory=set)

    def of(self, library: str) -> list[Use]:
        """Returns the uses of names from one library."""
        return [use for use in self.names if use.name.partition(".")[0] == library]

    def guard_at(self, line: int) -> Guard | None:
        """Returns the innermost guard that covers a line."""
        covering = [
            guard for guard in self.guards if any(first <= line <= last for first, last in guard)
        ]
        return covering[-1] if covering else None


def uses_in(file: str | Path) -> Uses:
    """Returns the names that a file uses; none if it cannot be read as Python."""
    try:
        return _uses_of(Path(file).read_bytes())
    except OSError:
        return Uses()


@lru_cache(maxsize=64)
def _uses_of(source: bytes) -> Uses:
    uses = Uses()
    try:
        nodes = list(ast.walk(ast.parse(source)))  # outer nodes come first
    except (SyntaxError, ValueError):
        return uses
    modules: dict[str, str] = {}
    for node in nodes:
        uses.guards += _guards(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, bound, stands_for in _imported(node):
                uses.names.add(Use(name, node.lineno, is_import=True))
                modules[bound] = stands_for
    for node in nodes:
        if isinstance(node, ast.Attribute):
            first, _, rest = _dotted(node).partition(".")
            if first in modules:
                uses.names.add(Use(f"{modules[first]}.{rest}", node.lineno, is_import=False))
    return uses


def _imported(node: ast.Import | ast.ImportFrom) -> Iterable[tuple[str, str, str]]:
    """Yields each imported name, the variable that is set, and the dotted name of its value."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield alias.name, alias.asname or top, alias.name if alias.asname else top
    elif node.level == 0 and node.module:
        for alias in node.names:
            name = node.module if alias.name == "*" else f"{node.module}.{alias.name}"
            yield name, alias.asname or alias.name, name


def _dotted(node: ast.AST) -> str:
    """Returns an expression's dotted name, such as "os.path"; "" if it is not a dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        of = _dotted(node.value)
        return of and f"{of}.{node.attr}"
    return ""


def _guards(node: ast.AST) -> Iterable[Guard]:
    if isinstance(node, ast.Try):
        if any(_catches(handler.type) for handler in node.handlers):
            yield (_lines(node.body), *([_lines(node.orelse)] if node.orelse else []))
            yield tuple(_lines(handler.body) for handler in node.handlers)
    elif isinstance(node, ast.With):
        for item in node.items:
            call = item.context_expr
            suppresses = isinstance(call, ast.Call) and _dotted(call.func).endswith("suppress")
            if suppresses and any(map(_catches, getattr(call, "args", ()))):
                yield (_lines(node.body),)
    elif isinstance(node, ast.If) and _dotted(node.test).endswith("TYPE_CHECKING"):
        yield (_lines(node.body),)


def _lines(statements: list[ast.stmt]) -> tuple[int, int]:
    return statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno


def _catches(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(map(_catches, kind.elts))
    return kind is None or _dotted(kind).rpartition(".")[2] in _CAUGHT
