"""Draws memory against time in the terminal, with a letter for each attempt of the front.

The front has the attempts for which no other takes less memory and less time. The letters are also
in the table of the front.

All other attempts are dots, and the memory limit is a line. Letters that belong in the same cell
are drawn side by side.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.layout import shown_width
from plimsoll.base.units import format_size
from plimsoll.prediction.axes import (
    LIMIT,
    NOTHING,
    SIZES,
    TIMES,
    legend,
    margin,
    round_scale,
    row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.base.layout import shown_width
    from plimsoll.prediction.fitting.plan_parts import Tried
from plimsoll.prediction.axes import Look, Scale

_ROWS, _LABELS = 12, 4
_COLUMNS_TO_A_LABEL = 14
_NEAR = 1.3
"""The picture shows the limit if it lies within this factor of the sizes in the picture."""
_FITS, _TOO_LARGE = "bold green", "bold yellow"
_OTHER: Look = ("·", "")

Cell = tuple[int, int]
"""A row and a column, counted from the lower left corner."""


def front_keys(front: Sequence[Tried]) -> list[str]:
    """Returns the letters that mark the rows of a front in the table and in the picture."""
    return list(ascii_lowercase[: len(front)])


def front_picture(
    front: Sequence[Tried], tried: Sequence[Tried], limit_bytes: int, width: int
) -> Text:
    """Returns the picture.

    The y axis is the memory of the card that an attempt needs. The x axis is the time of a step.

    Args:
        front: The attempts for which no other takes less memory and less time.
        tried: All attempts.
        limit_bytes: How much of the card's memory may be used.
        width: The width of the terminal. The picture has 60 to 200 columns.
    """
    width = shown_width(width)
    points = [each for each in tried if _is_point(each)]
    sizes = [each.least_used_bytes or 0 for each in points]
    times = [each.step_seconds or 0.0 for each in points]
    is_near = min(sizes) / _NEAR <= limit_bytes <= _NEAR * max(sizes)
    shown = [*sizes, limit_bytes] if is_near else sizes
    upwards = round_scale(min(shown), max(shown), labels=_LABELS, cells=_ROWS, units=SIZES)
    columns = width - margin(upwards) - 2
    across = round_scale(
        min(times), max(times), labels=columns // _COLUMNS_TO_A_LABEL, cells=columns, units=TIMES
    )
    looks = _placed(front, points, upwards, across)
    lines = [Text(f"y axis: {upwards.unit.name} of the card, x axis: {across.unit.name} per step")]
    for number in reversed(range(_ROWS)):
        empty = LIMIT if is_near and number == upwards.cell(limit_bytes) else NOTHING
        cells = [looks.get((number, column), empty) for column in range(columns)]
        lines.append(row(upwards, number, cells))
    lines += _axis(upwards, across)
    return Text("\n").join([*lines, *legend(_entries(looks, limit_bytes, is_near=is_near), width)])


def _is_point(tried: Tried) -> bool:
    return tried.least_used_bytes is not None and tried.step_seconds is not None


def _placed(
    front: Sequence[Tried], points: Sequence[Tried], upwards: Scale, across: Scale
) -> dict[Cell, Look]:
    """Returns the character and style of each cell that has an attempt."""
    looks: dict[Cell, Look] = {}
    for key, each in zip(front_keys(front), front, strict=True):
        cell = _free(_cell(each, upwards, across), looks, across.cells)
        looks[cell] = (key, _FITS if each.fits else _TOO_LARGE)
    for each in points:
        if each not in front:
            looks.setdefault(_cell(each, upwards, across), _OTHER)
    return looks


def _cell(tried: Tried, upwards: Scale, across: Scale) -> Cell:
    assert tried.least_used_bytes is not None
    assert tried.step_seconds is not None
    return upwards.cell(tried.least_used_bytes), across.cell(tried.step_seconds)


def _free(cell: Cell, looks: dict[Cell, Look], columns: int) -> Cell:
    """Returns `cell`, or the nearest free cell in its row if `cell` already has a letter."""
    number, column = cell
    near = sorted(range(columns), key=lambda other: abs(other - column))
    return next((number, other) for other in near if (number, other) not in looks)


def _axis(upwards: Scale, across: Scale) -> Iterator[Text]:
    """Yields the horizontal axis, its labels, and the units."""
    width = margin(upwards)
    labels = [across.label(column) for column in range(across.cells)]
    line = "".join("┴" if label else "─" for label in labels)
    yield Text(f"{upwards.unit.name:>{width}} └{line}")
    text = ""
    for column, label in enumerate(labels):
        if label:
            text = text.ljust(column + 1 - len(label)) + label
    yield Text(f"{across.unit.name:>{width}}  {text}")


def _entries(
    looks: dict[Cell, Look], limit_bytes: int, *, is_near: bool
) -> Iterator[tuple[Look, str]]:
    """Yields the legend's entries. The limit has an entry even if it is beyond the picture."""
    keys = sorted(look[0] for look in looks.values() if look != _OTHER)
    yield (f"{keys[0]} to {keys[-1]}", ""), "the rows above"
    if _OTHER in looks.values():
        yield _OTHER, "others that were tried"
    sign, style = LIMIT
    beyond = "" if is_near else ", beyond the picture"
    yield (2 * sign, style), f"the limit: {format_size(limit_bytes)}{beyond}"
