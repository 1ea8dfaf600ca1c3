"""Tests that no function has more than MOST_LINES lines; this limit may only be lowered."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "plimsoll"
MOST_LINES = 66
"""The most lines that a function may have; its docstring does not count.

Functions of `cli` are not counted, because most of their lines are lists of options.
"""


def lengths(path: Path) -> dict[str, int]:
    """Returns the number of lines of each function in a file, without the docstring."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                last = node.body[0].end_lineno
                assert last is not None
                lines -= last - node.body[0].lineno + 1
            found[node.name] = max(lines, found.get(node.name, 0))
    return found


def test_no_function_is_longer_than_the_longest_was() -> None:
    measured = {
        f"{path.relative_to(SOURCE)} {name}": lines
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "cli"
        for name, lines in lengths(path).items()
    }
    assert len(measured) > 1000
    assert {name: lines for name, lines in measured.items() if lines > MOST_LINES} == {}


def test_a_docstring_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text('def f():\n    """One.\n\n    Two.\n    """\n    x = 1\n    return x\n')
    assert lengths(file) == {"f": 3}
