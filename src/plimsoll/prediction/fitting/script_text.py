"""Edits of a script's text that keep the original number of each line.

Each edit parses the text, finds a statement by its line in the unchanged script, and returns a new
text. All text outside the edit stays the same, character by character.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class CannotChangeError(Exception):
    """A change cannot be made in this script; the message says why."""


@dataclass(frozen=True)
class ScriptText:
    """The text of a script, with the original number of each line.

    Attributes:
        lines: Its lines, without line breaks.
        origins: The number of each line in the unchanged script, from 1; None for an added line.
    """

    lines: tuple[str, ...]
    origins: tuple[int | None, ...]

    @classmethod
    def read(cls, path: Path) -> ScriptText:
        """Reads the script in a file.

        Raises:
            InputError: If it is not text.
        """
        try:
            return cls.of(path.read_text())
        except UnicodeDecodeError:
            raise InputError(f"{path} is no text in UTF-8") from None

    @classmethod
    def of(cls, text: str) -> ScriptText:
        """Returns `text` as the text of an unchanged script."""
        lines = tuple(text.removesuffix("\n").split("\n"))
        return cls(lines, tuple(range(1, len(lines) + 1)))

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"

    @cached_property
    def tree(self) -> ast.Module:
        """The text's syntax tree."""
        try:
            return ast.parse(str(self))
        except SyntaxError as error:
            raise CannotChangeError(f"the script cannot be parsed: {error.msg}") from None

    def now(self, line: int) -> int:
        """Returns the current number of the line that had this number in the unchanged script."""
        try:
            return self.origins.index(line) + 1
        except ValueError:
            raise CannotChangeError(f"line {line} was changed by another change") from None

    def function(self, name: str) -> ast.Module | ast.FunctionDef | ast.AsyncFunctionDef:
        """Returns the function with a qualified name. Returns the module for "<module>".

        Raises:
            CannotChangeError: If there is none.
        """
        node: ast.AST = self.tree
        for part in [] if name == "<module>" else name.split("."):
            if part == "<locals>":
                continue
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            inside = [
                each
                for each in own_statements(node)
                if isinstance(each, kinds) and each.name == part
            ]
            if not inside:
                raise CannotChangeError(f"there is no function {name} in the script")
            node = inside[-1]
        assert isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef)
        return node

    def statements(self, line: int) -> list[tuple[list[ast.stmt], int]]:
        """Returns the statements that contain a line of this text, the outermost first.

        Each is given as its block and its index in the block.

        Raises:
            CannotChangeError: If no statement contains the line.
        """
        found: list[tuple[list[ast.stmt], int]] = []
        node: ast.AST = self.tree
        while True:
            inner = next(
                (
                    (block, place)
                    for block in _blocks(node)
                    for place, each in enumerate(block)
                    if first_line(each) <= line <= (each.end_lineno or each.lineno)
                ),
                None,
            )
            if inner is None:
                break
            found.append(inner)
            node = inner[0][inner[1]]
        if not found:
            raise CannotChangeError(f"there is no statement in line {line}")
        return found

    def insert(self, before: int, added: Sequence[str], like: int) -> ScriptText:
        """Adds lines before line `before`, with the indentation of line `like`."""
        margin = indentation(self.lines[like - 1])
        new = tuple(f"{margin}{each}" if each else each for each in added)
        place = before - 1
        return ScriptText(
            (*self.lines[:place], *new, *self.lines[place:]),
            (*self.origins[:place], *[None] * len(new), *self.origins[place:]),
        )

    def insert_after(self, statement: ast.stmt, added: Sequence[str]) -> ScriptText:
        """Adds lines after a statement, with its indentation."""
        self._check_alone(statement)
        return self.insert(_end(statement) + 1, added, statement.lineno)

    def wrap(
        self,
        first: ast.stmt,
        last: ast.stmt,
        header: str,
        *,
        inside: Sequence[str] = (),
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> ScriptText:
        """Puts statements into a block that `header` begins.

        Args:
            first: The first statement.
            last: The last statement, in the same block.
            header: The header, such as "with x:".
            inside: Lines to add to the end of the block.
            before: Lines to add before the header.
            after: Lines to add after the block.
        """
        self._check_alone(first)
        self._check_alone(last)
        begin, end = first_line(first), _end(last)
        kept = self._lines_inside_strings()
        margin = indentation(self.lines[begin - 1])
        step = self._step()
        block = [
            line if number in kept or not line.strip() else step + line
            for number, line in enumerate(self.lines[begin - 1 : end], begin)
        ]
        head = [f"{margin}{each}" for each in (*before, header)]
        tail = [f"{margin}{step}{each}" for each in inside] + [f"{margin}{each}" for each in after]
        return ScriptText(
            (*self.lines[: begin - 1], *head, *block, *tail, *self.lines[end:]),
            (
                *self.origins[: begin - 1],
                *[None] * len(head),
                *self.origins[begin - 1 : end],
                *[None] * len(tail),
                *self.origins[end:],
            ),
        )

    def replace(self, node: ast.expr, text: str) -> ScriptText:
        """Replaces an expression's text.

        A line that is the same before and after keeps its original number.
        """
        if node.end_lineno is None or node.end_col_offset is None:
            raise CannotChangeError("an expression without an end")
        first, last = node.lineno - 1, node.end_lineno - 1
        begin = self.lines[first].encode()[: node.col_offset].decode()
        rest = self.lines[last].encode()[node.end_col_offset :].decode()
        new = (begin + text + rest).split("\n")
        origins: list[int | None] = [self.origins[first], *[None] * (len(new) - 1)]
        for place, line in enumerate(self.lines[first : last + 1]):
            if new[place : place + 1] == [line]:
                origins[place] = self.origins[first + place]
        if len(new) > 1 and new[-1] == self.lines[last]:
            origins[-1] = self.origins[last]
        return ScriptText(
            (*self.lines[:first], *new, *self.lines[last + 1 :]),
            (*self.origins[:first], *origins, *self.origins[last + 1 :]),
        )

    def move_before(self, statement: ast.stmt, line: int) -> ScriptText:
        """Moves a statement up, before line `line` of its block."""
        self._check_alone(statement)
        begin, end = first_line(statement) - 1, _end(statement)
        place = line - 1
        order = [
            *range(place), *range(begin, end), *range(place, begin), *range(end, len(self.lines)),
        ]  # fmt: skip
        return ScriptText(
            tuple(self.lines[each] for each in order), tuple(self.origins[each] for each in order)
        )

    def importing(self, *modules: str) -> ScriptText:
        """Adds an import of each module whose name the script does not import already."""
        known = set(_imported(self.tree))
        missing = [module for module in modules if module not in known]
        if not missing:
            return self
        added = [f"import {module}" for module in missing]
        return self.at_top(added)

    def at_top(self, added: Sequence[str]) -> ScriptText:
        """Adds lines after the imports at the script's beginning."""
        place = 1
        for statement in self.tree.body:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text and not isinstance(statement, ast.Import | ast.ImportFrom):
                break
            place = _end(statement) + 1
        new = tuple(added)
        return ScriptText(
            (*self.lines[: place - 1], *new, *self.lines[place - 1 :]),
            (*self.origins[: place - 1], *[None] * len(new), *self.origins[place - 1 :]),
        )

    def text_of(self, node: ast.AST) -> str:
        """Returns the text of a syntax node."""
        return ast.get_source_segment(str(self), node) or ast.unparse(node)

    def added(self, changed: ScriptText) -> list[str]:
        """Returns the lines that a change adds or rewrites, without their indentation."""
        return [
            line.strip()
            for line, origin in zip(changed.lines, changed.origins, strict=True)
            if origin is None or line.strip() != self.lines[origin - 1].strip()
        ]

    def difference(self, other: ScriptText, name: str) -> str:
        """Returns the patch from this text to another, in the form of `diff -u`."""
        lines = difflib.unified_diff(
            self.lines, other.lines, name, f"{name}, changed", lineterm="", n=1
        )
        return "\n".join(lines)

    def _step(self) -> str:
        """Returns the white space by which the script indents a block."""
        inner = (each for each in ast.walk(self.tree) if isinstance(each, ast.stmt))
        first = min(
            (each for each in inner if each.col_offset > 0),
            key=lambda each: each.col_offset,
            default=None,
        )
        return "    " if first is None else indentation(self.lines[first.lineno - 1]) or "    "

    def _lines_inside_strings(self) -> set[int]:
        """Returns the numbers of lines whose beginning is inside a string."""
        inside: set[int] = set()
        begun: list[int] = []
        for token in tokenize.generate_tokens(io.StringIO(str(self)).readline):
            name = tokenize.tok_name[token.type]
            if name == "FSTRING_START":
                begun.append(token.start[0])
            begin = begun.pop() if name == "FSTRING_END" else token.start[0]
            if name in ("STRING", "FSTRING_END"):
                inside.update(range(begin + 1, token.end[0] + 1))
        return inside

    def _check_alone(self, statement: ast.stmt) -> None:
        """Raises a `CannotChangeError` if another statement shares a line with this one."""
        before = self.lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
        after = self.lines[_end(statement) - 1].encode()[statement.end_col_offset :].decode()
        if before.strip() or after.strip().startswith(";"):
            raise CannotChangeError(f"line {statement.lineno} holds several statements")


def indentation(line: str) -> str:
    """Returns the white space at the beginning of a line."""
    return line[: len(line) - len(line.lstrip())]


def first_line(statement: ast.stmt) -> int:
    """Returns the first line of a statement, decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(int(each.lineno) for each in decorators)])


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        yield handler.body


def own_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yields the statements of a scope and of its blocks, without those of inner scopes."""
    for block in _blocks(node):
        for each in block:
            yield each
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from own_statements(each)


def _imported(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.asname or alias.name
                if alias.asname is None:
                    yield alias.name.partition(".")[0]
        elif isinstance(statement, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in statement.names)
