"""Lays out text for the width of a terminal: paragraphs, folded lines, tables."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NARROWEST, WIDEST = 60, 200
"""The smallest and the largest width of texts, tables and pictures, in columns."""
IN_A_PIPE = 100
"""The width of a picture when the output is not a terminal."""
_CELL = r"(?:[\d.,]+ ?(?:bytes?|[KMGT]iB|us|ms|s|%)|[?-])"
_BEFORE_WORDS = re.compile(rf" *(?:[a-z]  +)?(?:{_CELL}  +)+| *\d+\. | *")
"""Matches what stands before a line's words: the values of a table's row, the number of a list's
item, such as "2. ", or an indent. `folded` indents the next lines by the width of the match. If the
match is only an indent, the next lines are indented by two columns more."""
_FIGURE = re.compile(r"(\d) (?=bytes?\b|[KMGT]iB\b|us\b|ms\b|s\b|%)")
_TOGETHER = "\u00a0"
_LEAST_NAME = 12


class Verbatim(str):
    """A line that people copy, such as a command. `folded` never folds such a line."""

    __slots__ = ()


def shown_width(width: int) -> int:
    """Returns how many columns text may use: `width`, but at least NARROWEST, at most WIDEST."""
    return min(max(width, NARROWEST), WIDEST)


def paragraphs(parts: Iterable[Iterable[str]], width: int | None = None) -> str:
    """Joins paragraphs, puts an empty line between them, and makes each line `printable`.

    Paragraphs without text are left out.

    Args:
        parts: The lines of each paragraph.
        width: The columns available; None does not fold lines.
    """
    shown = ("\n".join(_laid_out(lines, width)) for lines in parts)
    return "\n\n".join(text for text in shown if text)


def folded(line: str, width: int | None) -> list[str]:
    """Folds a line to the width. Never splits a word, a path or a size.

    >>> folded("    2.00 GiB  train.py:51 forward (4 blocks)", 34)
    ['    2.00 GiB  train.py:51 forward', '              (4 blocks)']
    """
    if width is None or len(line) <= width or isinstance(line, Verbatim):
        return [line]
    before = _BEFORE_WORDS.match(line)
    indent = 0 if before is None else before.end()
    hanging = indent if line[:indent].strip() else indent + 2 * (indent > 0)
    lines = textwrap.wrap(
        _FIGURE.sub(rf"\1{_TOGETHER}", line),
        width,
        subsequent_indent=" " * min(hanging, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [one.replace(_TOGETHER, " ") for one in lines]


def table(
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    indent: str = "",
    names: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> Iterator[str]:
    """Aligns rows in columns; numbers are aligned to the right.

    Args:
        rows: The row of heads, followed by the other rows of the table.
        width: The characters available for a line; None for as many as the rows need.
        indent: The text that each line begins with.
        names: The heads of columns that hold words. These columns are aligned to the left. If the
            table is too wide, the column whose head comes first in `names` is folded.
        optional: The heads of columns that a narrow terminal leaves out, the least important first.
    """
    columns = {head: [row[place] for row in rows] for place, head in enumerate(rows[0])}
    widths = {head: max(map(len, column)) for head, column in columns.items()}
    folds = next(iter(names), "")

    def too_wide() -> int:
        """Returns the number of characters by which the table is wider than `width`."""
        taken = len(indent) + sum(widths.values()) + 2 * (len(widths) - 1)
        return 0 if width is None else max(taken - width, 0)

    for head in optional:
        if not too_wide():
            break
        columns.pop(head, None), widths.pop(head, None)
    if folds in widths:
        widths[folds] = max(widths[folds] - too_wide(), min(widths[folds], _LEAST_NAME))
    for place in range(len(rows)):
        cells = {
            head: textwrap.wrap(column[place], widths[head]) if head == folds else [column[place]]
            for head, column in columns.items()
        }
        for line in range(max(1, *map(len, cells.values()))):
            shown = (
                f"{''.join(cell[line : line + 1]):{'<' if head in names else '>'}{widths[head]}}"
                for head, cell in cells.items()
            )
            yield indent + "  ".join(shown).rstrip()


def _laid_out(lines: Iterable[str], width: int | None) -> Iterator[str]:
    for line in lines:
        shown = printable(line)
        yield from folded(Verbatim(shown) if isinstance(line, Verbatim) else shown, width)
