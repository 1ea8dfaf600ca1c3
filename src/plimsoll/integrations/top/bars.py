"""Draws bars and graphs of memory with characters.

Every kind of memory has its own character, so that bars can be read without colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.integrations.top.model import GpuUse, ProcessUse

# The parts of a bar in drawing order: character, style and name of each.
ALLOCATED = ("█", "green", "allocated")
CACHED = ("▓", "yellow", "cached")
FRAGMENTS = ("▒", "red", "fragments")
CONTEXT = ("#", "blue", "context")
_OTHER = ("=", "magenta", "others")
_FREE = ("·", "bright_black", "free")
_PARTS = (ALLOCATED, CACHED, FRAGMENTS, CONTEXT, _OTHER, _FREE)
_LEVELS = " ▁▂▃▄▅▆▇█"


def gpu_parts(gpu: GpuUse) -> list[int]:
    """Divides the used bytes of a GPU's dedicated memory among the parts of a bar.

    Returns the bytes of each part in drawing order, without the free part.
    """
    parts = [sum(each) for each in zip([0] * 4, *map(_process_parts, gpu.processes), strict=True)]
    return [*parts, max(gpu.known_bytes - sum(parts), 0)]


def _process_parts(use: ProcessUse) -> list[int]:
    counters = use.counters
    if counters is None:
        return [0] * 4
    cached, fragments = counters.cached_bytes, counters.fragments_bytes or 0
    allocated = max(counters.dedicated_bytes - cached - fragments, 0)
    return [allocated, cached, fragments, use.context_bytes or 0]


def bar(parts: Sequence[int], total: int | None, width: int) -> Text:
    """Draws parts of memory as a bar; the rest of `total` is drawn as free.

    A larger part never has fewer characters than a smaller one.

    Args:
        parts: The parts in bytes, in drawing order, without the free part.
        total: The size of the whole memory, in bytes; None or 0 leaves the bar empty.
        width: The bar's width in characters.
    """
    line = Text(no_wrap=True)
    if not total or width <= 0:
        return line.append(" " * max(width, 0))
    shown = [*parts, *[0] * (len(_PARTS) - 1 - len(parts))]
    shown.append(max(total - sum(shown), 0))
    for (sign, style, _), letters in zip(_PARTS, _letters(shown, width), strict=True):
        line.append(sign * letters, style)
    return line


def _letters(parts: Sequence[int], width: int) -> list[int]:
    """Returns how many characters each part gets.

    Each part's exact share of `width` is first rounded down. The characters that remain go to the
    parts with the largest remainders, one each.
    """
    whole = sum(parts)
    letters = [part * width // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda each: -(parts[each] * width % whole))
    for each in by_remainder[: width - sum(letters)]:
        letters[each] += 1
    return letters


def legend(width: int) -> list[Text]:
    """Returns lines that explain the characters of the bars."""
    lines = [Text(no_wrap=True)]
    for sign, style, name in _PARTS:
        if lines[-1].cell_len + len(name) + 4 > width:
            lines.append(Text(no_wrap=True))
        lines[-1].append(sign, style)
        lines[-1].append(f" {name}  ")
    for line in lines:
        line.rstrip()
    return lines


def graph(values: Sequence[int], most: int, width: int, height: int = 1) -> list[str]:
    """Draws the latest values as columns, the last one at the right end.

    A value above zero is never drawn empty.

    Args:
        values: The values in bytes, oldest first.
        most: The value of a full column.
        width: The width in characters.
        height: The height in lines.
    """
    steps = len(_LEVELS) - 1
    shown = list(values)[-width:] if width > 0 else []
    heights = [
        min(max(round(value / max(most, 1) * height * steps), value > 0), height * steps)
        for value in shown
    ]
    return [
        "".join(_LEVELS[min(max(each - row * steps, 0), steps)] for each in heights).rjust(width)
        for row in reversed(range(height))
    ]


def most_of_each(values: Sequence[int], count: int) -> list[int]:
    """Returns the maximum of each group of `count` values; groups are counted from the end.

    >>> most_of_each([1, 5, 2, 3, 4], 2)
    [1, 5, 4]
    """
    ends = reversed(range(len(values), 0, -count))
    return [max(values[max(end - count, 0) : end]) for end in ends]
