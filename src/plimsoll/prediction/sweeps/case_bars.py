"""Draws a sweep in the terminal: a bar for each row, the best row first.

A mark in each row shows the memory of the row's card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.layout import IN_A_PIPE, shown_width
from plimsoll.base.printable import printable
from plimsoll.prediction.axes import LIMIT, SIZES, legend, round_scale
from plimsoll.prediction.sweeps.best_rows import by_program
from plimsoll.prediction.sweeps.text import row_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.axes import Look, Scale
    from plimsoll.prediction.sweeps.parts import Row, SweepParts

_COLUMNS_TO_A_LABEL = 12
_FITS: Look = ("█", "green")
_TOO_MUCH: Look = ("░", "yellow")
_UNKNOWN: Look = ("▒", "yellow")
_END: Look = ("│", LIMIT[1])
_NEAR = 1.3
"""A card's mark is drawn only if its memory is at most this many times the largest use."""


def case_bars(found: SweepParts, width: int = IN_A_PIPE) -> Text:
    """Returns the picture: for each case that did not fail, a bar for the memory that it uses.

    Args:
        found: The sweep.
        width: The width of the terminal. The picture has 60 to 200 columns.
    """
    width = shown_width(width)
    programs = [[row for row in rows if row.error is None] for rows in by_program(found)]
    rows = [row for of_program in programs for row in of_program]
    if not rows:
        return Text("nothing to draw: all cases failed")
    names = min(max(len(row_name(row)) for row in rows), width // 2)
    columns = width - names - 2
    most = max(row.device_used_bytes or 1 for row in rows)
    near = [row.total_bytes for row in rows if row.total_bytes and row.total_bytes <= _NEAR * most]
    scale = round_scale(
        0, max(most, *near, 1), labels=max(columns // _COLUMNS_TO_A_LABEL, 1), cells=columns,
        units=SIZES,
    )  # fmt: skip
    lines: list[Text] = []
    for of_program in programs:
        if len(programs) > 1 and of_program:
            lines.append(Text(printable(of_program[0].case.name)))
        lines += [_bar(row, scale, names) for row in of_program]
    lines += _axis(scale, names)
    unknown = [(_UNKNOWN, "not known")] if any(row.fits is None for row in rows) else []
    entries = [(_FITS, "fits"), (_TOO_MUCH, "does not fit"), *unknown, (_END, "the card's end")]
    return Text("\n").join([*lines, *legend(entries, width)])


def _bar(row: Row, scale: Scale, names: int) -> Text:
    name = printable(row_name(row))
    line = Text(f"{name if len(name) <= names else name[: names - 1] + '…':<{names}} ┤")
    sign, style = {True: _FITS, False: _TOO_MUCH, None: _UNKNOWN}[row.fits]
    length = scale.cell(row.device_used_bytes or 1) + 1
    line.append(sign * length, style)
    if row.total_bytes and row.total_bytes <= scale.high:
        end = scale.cell(row.total_bytes)
        if end >= length:
            line.append(" " * (end - length)).append(*_END)
    return line


def _axis(scale: Scale, names: int) -> Sequence[Text]:
    labels = [scale.label(column) for column in range(scale.cells)]
    line = "".join("┴" if label else "─" for label in labels)
    text = ""
    for column, label in enumerate(labels):
        if label:
            text = text.ljust(column + 1 - len(label)) + label
    return [Text(f"{scale.unit.name:>{names}} └{line}"), Text(" " * (names + 2) + text)]
