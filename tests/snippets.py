"""Finds the Python snippets in a plain-text article about PyTorch.

An article may fence its code, as Markdown does. Otherwise a snippet is a run of lines that can be a
program: it is Python, it does something, and it mentions torch. Copies of web pages lose
indentation. A body without indentation is indented again, up to its first `return` or similar
statement. If there is no such statement before the next block, only the first line is indented.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FENCED = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*\1", re.M | re.S)
PYTHON = {"python", "python3", "py"}
LEAVES = re.compile(r"(sys\.)?exit\(|(return|raise|break|continue|pass)\b")


@dataclass(frozen=True)
class Snippet:
    article: str
    """The file's name without its ending."""
    number: int
    """The number among the article's snippets, from 1."""
    code: str

    @property
    def missing(self) -> set[str]:
        """Returns the names that the snippet uses but does not define."""
        table = symtable.symtable(self.code, "snippet", "exec")
        own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
        own |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_imported()}
        used = {
            symbol.get_name()
            for scope in scopes(table)
            for symbol in scope.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or scope is table)
        }
        return used - own - set(dir(builtins)) - {"__name__", "__file__"}


def read_snippets(folder: Path) -> list[Snippet]:
    """Returns the snippets of all articles in a folder."""
    return [
        Snippet(path.stem, number, code)
        for path in sorted(folder.iterdir())
        if path.suffix in {".txt", ".md"}
        for number, code in enumerate(snippets(path.read_text(encoding="utf-8")), 1)
    ]


def snippets(article: str) -> list[str]:
    """Returns the snippets in the article's order."""
    fenced = [
        textwrap.dedent(code)
        for _, language, code in FENCED.findall(article)
        if language.lower() in PYTHON
    ]
    return [code for code in fenced if is_python(code)] or list(runs(article.splitlines()))


def is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def runs(lines: list[str]) -> Iterator[str]:
    """Yields each run of lines that forms a program about torch; a run is as long as possible."""
    while lines:
        program = leading_program(lines)
        if program and speaks_of_torch(program):
            yield "\n".join(program)
        lines = lines[max(len(program), 1) :]


def leading_program(lines: list[str]) -> list[str]:
    """Returns the longest program at the beginning of the lines; it ends before a line of prose."""
    margin = depth(lines[0])
    lines = [line[min(margin, depth(line)) :] for line in lines]
    while lines:
        try:
            tree = ast.parse("\n".join(lines))
        except SyntaxError as error:
            lines = indented(lines, error) or lines[: min(error.lineno or 1, len(lines)) - 1]
            continue
        prose = next((node.lineno for node in tree.body if does_nothing(node)), None)
        if prose is None:
            return lines[: tree.body[-1].end_lineno] if tree.body else []
        lines = lines[: prose - 1]
    return []


def indented(lines: list[str], error: SyntaxError) -> list[str] | None:
    """Returns a copy of the lines in which the unindented body is indented.

    Returns None if the error is not a missing indentation.
    """
    opener = re.match(r"expected an indented block .* on line (\d+)", error.msg)
    if not opener or not error.lineno or not int(opener[1]) < error.lineno <= len(lines):
        return None
    first, outside = error.lineno - 1, depth(lines[int(opener[1]) - 1])
    if depth(lines[first]) > outside:
        return None
    end = first + 1
    for number, line in enumerate(lines[first:], first):
        if depth(line) > outside or line.rstrip().endswith(":"):
            break
        if LEAVES.match(line.lstrip()):
            end = number + 1
            break
    body = ["    " + line for line in lines[first:end]]
    return lines[:first] + body + lines[end:]


def depth(line: str) -> int:
    """Returns the indentation of a line."""
    return len(line) - len(line.lstrip())


def does_nothing(node: ast.stmt) -> bool:
    """Returns whether a statement is a heading or a sentence that happens to be Python."""
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    return isinstance(node, ast.Expr) and not any(
        isinstance(part, ast.Call) for part in ast.walk(node)
    )


def speaks_of_torch(lines: list[str]) -> bool:
    tree = ast.parse("\n".join(lines))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    }
    return "torch" in names | imports


def scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from scopes(child)
