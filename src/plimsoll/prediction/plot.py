"""Draws memory over a run in the terminal: stacked areas of block characters.

A character covers a range of sizes, and shows the category in the middle of that range. Each
category has a texture and a colour, so that the picture is readable without colours too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.layout import IN_A_PIPE, shown_width
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.prediction import axes
from plimsoll.recordings.analysis.category_names import category_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.timeline import Timeline

_ROWS, _LABELS = 12, 4
_NEAR = 1.3
"""The picture shows the limit only if it is at most this many times the reserved memory."""
_AREAS = {
    "other": ("▐", "white"),
    "parameters": ("█", "blue"),
    "optimizer_state": ("▓", "magenta"),
    "gradients": ("▒", "yellow"),
    "inputs": ("▌", "white"),
    "kv_cache": ("▙", "magenta"),
    "collectives": ("▜", "yellow"),
    "workspaces": ("▄", "bright_black"),
    "activations": ("░", "green"),
    "unused_activations": ("▞", "red"),
    "recomputed_activations": ("▘", "green"),
    "temporaries": ("▚", "cyan"),
    "rounding": ("▖", "bright_black"),
}
"""The look of each category, from the picture's bottom to its top: long-lived memory first."""
_RESERVED: axes.Look = ("─", "bold")


@dataclass(frozen=True)
class Picture:
    """A run to draw.

    Attributes:
        name: The picture's title.
        timeline: The run's memory.
        limit_bytes: The memory that the card has for PyTorch.
    """

    name: str
    timeline: Timeline
    limit_bytes: int


def plot(
    pictures: Sequence[Picture], width: int = IN_A_PIPE, *, limit_name: str = "the card"
) -> Text:
    """Draws runs one above the other, on the same scale.

    Args:
        pictures: The runs, such as one before and one after a change.
        width: The width of the terminal. The picture has 60 to 200 columns.
        limit_name: The legend's name for the limits.
    """
    width = shown_width(width)
    scale = _scale(pictures)
    lines = [line for each in pictures for line in _picture(each, scale, width)]
    limits = sorted({each.limit_bytes for each in pictures if each.limit_bytes <= scale.high})
    drawn = {sign for line in lines for sign in line.plain}
    areas = [(look, category_title(name)) for name, look in _AREAS.items() if look[0] in drawn]
    entries = [*areas, (_RESERVED, "reserved")]
    if limits:
        entries.append((axes.LIMIT, f"{limit_name}: {', '.join(map(format_size, limits))}"))
    entries = [((2 * sign, style), name) for (sign, style), name in entries]
    return Text("\n").join([*lines, *axes.legend(entries, width)])


def _scale(pictures: Sequence[Picture]) -> axes.Scale:
    most = max(max(each.timeline.reserved_bytes, default=0) for each in pictures)
    most = max(most, *(max(each.timeline.allocated_bytes, default=0) for each in pictures), 1)
    near = [each.limit_bytes for each in pictures if each.limit_bytes <= _NEAR * most]
    return axes.round_scale(0, max([most, *near]), labels=_LABELS, cells=_ROWS, units=axes.SIZES)


def _picture(picture: Picture, scale: axes.Scale, width: int) -> Iterator[Text]:
    timeline = picture.timeline
    columns = _columns(timeline, width - axes.margin(scale) - 2)
    title = f"{printable(picture.name)}: {_what(timeline)}"
    yield Text(title if len(title) <= width else title[: width - 1] + "…")
    areas = [_area(timeline, point, scale) for point in columns]
    limit = scale.cell(picture.limit_bytes) if picture.limit_bytes <= scale.high else None
    for number in reversed(range(_ROWS)):
        cells = []
        for point, area in zip(columns, areas, strict=True):
            reserved = scale.cell(timeline.reserved_bytes[point])
            is_line = reserved == number and number >= len(area)
            below = area[number] if number < len(area) else axes.NOTHING
            cells.append(_RESERVED if is_line else axes.LIMIT if number == limit else below)
        yield axes.row(scale, number, cells)
    yield from _axis(timeline, columns, scale)


def _what(timeline: Timeline) -> str:
    """Returns the words for the part of the run that the picture shows."""
    count = format_count(timeline.end_event - timeline.first_event, "event")
    if not timeline.first_event and timeline.first_step == 1:
        return f"memory over {count}"
    last = timeline.first_step + len(timeline.step_ends) - 1
    return f"memory over steps {timeline.first_step} to {last}, {count}"


def _columns(timeline: Timeline, count: int) -> list[int]:
    """Returns, for each column, the index of the point that it shows.

    A column covers one or more points of the timeline, and shows the point with the most memory.
    """
    allocated = timeline.allocated_bytes
    points = len(allocated)
    shown = []
    for column in range(count):
        first = column * points // count
        last = max((column + 1) * points // count, first + 1)
        shown.append(max(range(first, last), key=allocated.__getitem__))
    return shown


def _area(timeline: Timeline, point: int, scale: axes.Scale) -> list[axes.Look]:
    """Returns the characters of a column's rows, from the lowest up."""
    sizes = [(look, timeline.by_category[name][point]) for name, look in _AREAS.items()
             if name in timeline.by_category]  # fmt: skip
    edges = [round(edge / scale.cell_size) for edge in accumulate(size for _, size in sizes)]
    looks: list[axes.Look] = []
    for (look, _), edge in zip(sizes, edges, strict=True):
        looks += [look] * (edge - len(looks))
    return looks


def _axis(timeline: Timeline, columns: list[int], scale: axes.Scale) -> Iterator[Text]:
    """Yields the horizontal axis, with the ends of steps."""
    ticks = {
        max((column for column, point in enumerate(columns) if point <= end), default=0): step
        for step, end in enumerate(timeline.step_ends, timeline.first_step)
    }
    line = "".join("┴" if column in ticks else "─" for column in range(len(columns)))
    yield Text(f"{scale.unit.name:>{axes.margin(scale)}} └{line}")
    if not ticks:
        return
    text = ""
    for column, step in ticks.items():
        for label in (f"step {step}", str(step)):
            if column + 1 - len(label) >= len(text) + bool(text):
                text = text.ljust(column + 1 - len(label)) + label
                break
    yield Text(" " * (axes.margin(scale) + 2) + text)
