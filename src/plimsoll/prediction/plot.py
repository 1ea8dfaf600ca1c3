"""Memory over a run as a picture in the terminal: areas of block characters, one on the other.

A cell shows what is live at the height of its middle. No meaning is in a colour alone: each
category has a texture of its own, so the picture is the same in a pipe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.printable import printable
from plimsoll.units import GiB, KiB, MiB, format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.timeline import Timeline

NARROWEST, WIDEST = 60, 200
IN_A_PIPE = 100
_ROWS = 12
_ROWS_BETWEEN_LABELS = 3
_INTERVALS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_NEAR = 1.3
"""A limit is in the picture where it is at most so many times what was reserved."""
_AREAS = {
    "parameters": ("█", "blue"),
    "optimizer_state": ("▓", "magenta"),
    "gradients": ("▒", "yellow"),
    "inputs": ("▌", "white"),
    "workspaces": ("▄", "bright_black"),
    "activations": ("░", "green"),
    "temporaries": ("▚", "cyan"),
    "rounding": ("▖", "bright_black"),
}
"""From the bottom to the top: what stays is under what comes and goes."""
_RESERVED, _LIMIT, _NOTHING = ("─", "bold"), ("╌", "bold red"), (" ", "")


@dataclass(frozen=True)
class Picture:
    """A run to be drawn.

    Attributes:
        name: What its title calls it.
        timeline: Its memory.
        limit_bytes: What the card has for PyTorch.
    """

    name: str
    timeline: Timeline
    limit_bytes: int


@dataclass(frozen=True)
class _Scale:
    """The heights of all pictures.

    Attributes:
        top_bytes: The upper edge of the highest row.
        unit: What the labels count.
        digits: How many of a label's are behind the point.
    """

    top_bytes: float
    unit: int
    digits: int

    @property
    def row_bytes(self) -> float:
        return self.top_bytes / _ROWS

    def row(self, height: int) -> int:
        """In which row something lies; what is at the edge of two is in the lower one."""
        return min(max(math.ceil(height / self.row_bytes) - 1, 0), _ROWS - 1)

    def label(self, row: int) -> str:
        """Of the upper edge of a row; empty for most."""
        if (row + 1) % _ROWS_BETWEEN_LABELS:
            return ""
        return f"{(row + 1) * self.row_bytes / self.unit:.{self.digits}f}"


def plot(pictures: Sequence[Picture], width: int = IN_A_PIPE) -> Text:
    """Draw runs one above the other, on the same scale.

    Args:
        pictures: The runs, such as one before and one after a change.
        width: Of the terminal; it is drawn 60 to 200 columns wide.
    """
    width = min(max(width, NARROWEST), WIDEST)
    scale = _scale(pictures)
    lines = [line for each in pictures for line in _picture(each, scale, width)]
    limits = sorted({each.limit_bytes for each in pictures if each.limit_bytes <= scale.top_bytes})
    drawn = {sign for line in lines for sign in line.plain}
    return Text("\n").join([*lines, *_legend(drawn, limits, width)])


def _scale(pictures: Sequence[Picture]) -> _Scale:
    most = max(max(each.timeline.reserved_bytes, default=0) for each in pictures)
    most = max(most, *(max(each.timeline.allocated_bytes, default=0) for each in pictures), 1)
    near = [each.limit_bytes for each in pictures if each.limit_bytes <= _NEAR * most]
    most = max([most, *near])
    unit = GiB if most >= GiB else MiB if most >= MiB else KiB
    labels = _ROWS // _ROWS_BETWEEN_LABELS
    least = most / unit / labels
    power = 10.0 ** math.floor(math.log10(least))
    interval = next(each * power for each in _INTERVALS if each * power * (1 + 1e-9) >= least)
    digits = next(n for n in range(9) if math.isclose(interval, round(interval, n), rel_tol=1e-6))
    return _Scale(interval * labels * unit, unit, digits)


def _picture(picture: Picture, scale: _Scale, width: int) -> Iterator[Text]:
    timeline = picture.timeline
    names = {GiB: "GiB", MiB: "MiB", KiB: "KiB"}
    margin = max(len(names[scale.unit]), *(len(scale.label(row)) for row in range(_ROWS)))
    columns = _columns(timeline, width - margin - 2)
    title = f"{printable(picture.name)}: {_what(timeline)}"
    yield Text(title if len(title) <= width else title[: width - 1] + "…")
    areas = [_area(timeline, point, scale) for point in columns]
    limit = scale.row(picture.limit_bytes) if picture.limit_bytes <= scale.top_bytes else None
    for row in reversed(range(_ROWS)):
        cells = []
        for point, area in zip(columns, areas, strict=True):
            is_line = scale.row(timeline.reserved_bytes[point]) == row and row >= len(area)
            below = area[row] if row < len(area) else _NOTHING
            cells.append(_RESERVED if is_line else _LIMIT if row == limit else below)
        label = scale.label(row)
        yield _row(f"{label:>{margin}} {'┤' if label else '│'}", cells)
    yield from _axis(timeline, columns, names[scale.unit], margin)


def _row(begin: str, cells: Sequence[tuple[str, str]]) -> Text:
    """A line, whose cells are joined where they look alike."""
    line = Text(begin)
    for (sign, style), alike in groupby(cells):
        line.append(sign * len(list(alike)), style)
    line.rstrip()
    return line


def _what(timeline: Timeline) -> str:
    """Which part of the run it is."""
    count = format_count(timeline.end_event - timeline.first_event, "event")
    if not timeline.first_event and timeline.first_step == 1:
        return f"memory over {count}"
    last = timeline.first_step + len(timeline.step_ends) - 1
    return f"memory over steps {timeline.first_step} to {last}, {count}"


def _columns(timeline: Timeline, count: int) -> list[int]:
    """The point that each column shows: of those that fall into it, the one with the most."""
    allocated = timeline.allocated_bytes
    points = len(allocated)
    shown = []
    for column in range(count):
        first = column * points // count
        last = max((column + 1) * points // count, first + 1)
        shown.append(max(range(first, last), key=allocated.__getitem__))
    return shown


def _area(timeline: Timeline, point: int, scale: _Scale) -> list[tuple[str, str]]:
    """What the rows of a column show, from the lowest up."""
    sizes = [(look, timeline.by_category[name][point]) for name, look in _AREAS.items()
             if name in timeline.by_category]  # fmt: skip
    edges = [round(edge / scale.row_bytes) for edge in accumulate(size for _, size in sizes)]
    looks: list[tuple[str, str]] = []
    for (look, _), edge in zip(sizes, edges, strict=True):
        looks += [look] * (edge - len(looks))
    return looks


def _axis(timeline: Timeline, columns: list[int], unit: str, margin: int) -> Iterator[Text]:
    """The line below, and the steps where they end."""
    ticks = {
        max((column for column, point in enumerate(columns) if point <= end), default=0): step
        for step, end in enumerate(timeline.step_ends, timeline.first_step)
    }
    line = "".join("┴" if column in ticks else "─" for column in range(len(columns)))
    yield Text(f"{unit:>{margin}} └{line}")
    if not ticks:
        return
    text = ""
    for column, step in ticks.items():
        for label in (f"step {step}", str(step)):
            if column + 1 - len(label) >= len(text) + bool(text):
                text = text.ljust(column + 1 - len(label)) + label
                break
    yield Text(" " * (margin + 2) + text)


def _legend(drawn: set[str], limits: Sequence[int], width: int) -> Iterator[Text]:
    entries = [(look, name.replace("_", " ")) for name, look in _AREAS.items() if look[0] in drawn]
    entries.append((_RESERVED, "reserved"))
    if limits:
        entries.append((_LIMIT, f"the card: {', '.join(map(format_size, limits))}"))
    line = Text()
    for (sign, style), name in entries:
        if line and len(line) + len(name) + 6 > width:
            yield line
            line = Text()
        line.append("  " if line else "").append(2 * sign, style).append(f" {name}")
    yield line
