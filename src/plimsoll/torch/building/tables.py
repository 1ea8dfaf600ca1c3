"""Turns each row of a data file into a C++ initializer, for sources that `#include` the result.

A data file is UTF-8 with one row per line. Empty lines and lines that begin with # are ignored. In
a .txt, a row is a name; it becomes `"aten::add",`. In a .csv, the first row names the columns. The
column `name` has names, `words` has text with spaces, and all other columns have integers. A row
becomes `{.name = "add", .batch = 64},`, which initializes a struct of the source. The compiler
rejects a column that is not a field of this struct.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_NAME = re.compile(r"[\w:.]+", re.ASCII)
_WORDS = re.compile(r"[\w ]+", re.ASCII)
_COLUMN = re.compile(r"[a-z]\w*", re.ASCII)
_NUMBER = re.compile(r"-?\d+", re.ASCII)


def write_includes(tables: Path, folder: Path) -> None:
    """Writes NAME.inc into `folder` for each NAME.txt and NAME.csv of `tables`.

    Raises:
        InputError: If a file cannot be read, or a row is bad.
    """
    for path in sorted(tables.iterdir()):
        if path.suffix in _CONVERTERS:
            (folder / f"{path.stem}.inc").write_text(as_include(path))


def as_include(path: Path) -> str:
    """Returns the rows of a data file as initializers, one a line.

    Raises:
        InputError: If the file cannot be read, or a row is bad.
    """
    rows = _open(path)
    made = "".join(f"{row},\n" for row in _CONVERTERS[path.suffix](rows))
    if not made:
        raise InputError(f"the data file {path} has no rows")
    return made


def _open(path: Path) -> _Rows:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the data file {path} cannot be read: {error}") from error
    return _Rows(path, lines)


class _Rows:
    """Iterates over the rows of a data file; an error names the line that was read last."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path = path
        self._lines = lines
        self._number = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, 1):
            self._number = number
            if line.strip() and not line.startswith("#"):
                yield line.strip()

    def error(self, problem: str) -> InputError:
        return InputError(f"{self._path}, line {self._number}: {problem}")


def _names(rows: _Rows) -> Iterable[str]:
    seen = set()
    for name in rows:
        if not _NAME.fullmatch(name):
            raise rows.error(f"{name!r} is not an operation's name")
        if name in seen:
            raise rows.error(f"{name} is there twice")
        seen.add(name)
        yield f'"{name}"'


def read_numbers(path: Path) -> list[dict[str, int]]:
    """Reads a .csv that has only integers. Each row becomes a dictionary {column: integer}.

    Raises:
        InputError: If the file cannot be read, or a row is bad.
    """
    rows = _open(path)
    return [{column: int(cell) for column, cell in row} for row in _cells(rows)]


def _numbers(rows: _Rows) -> Iterable[str]:
    for row in _cells(rows):
        yield "{" + ", ".join(_field(rows, column, cell) for column, cell in row) + "}"


def _cells(rows: _Rows) -> Iterator[list[tuple[str, str]]]:
    """Yields the cells of each row, each with its column's name."""
    columns: list[str] = []
    for row in rows:
        cells = row.split(",")
        if not columns:
            columns = cells
            if not all(map(_COLUMN.fullmatch, columns)):
                raise rows.error("the names of the columns, such as kind,batch, are missing")
            continue
        if len(cells) != len(columns):
            raise rows.error(f"{len(cells)} numbers for {len(columns)} columns")
        yield list(zip(columns, cells, strict=True))


def _field(rows: _Rows, column: str, cell: str) -> str:
    if column == "name":
        if not _NAME.fullmatch(cell):
            raise rows.error(f"{cell!r} is not an operation's name")
        return f'.name = "{cell}"'
    if column == "words":
        if not _WORDS.fullmatch(cell):
            raise rows.error(f"{cell!r} is not words")
        return f'.words = "{cell}"'
    if not _NUMBER.fullmatch(cell):
        raise rows.error(f"{cell!r} is not a whole number")
    return f".{column} = {cell}"


_CONVERTERS = {".txt": _names, ".csv": _numbers}
