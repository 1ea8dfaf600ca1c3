"""The parts that all pictures in the terminal share: widths, round scales, rows, legends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.units import GiB, KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_INTERVALS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)

Look = tuple[str, str]
"""A character and its style. Pictures are readable from the characters alone, without colours."""
LIMIT: Look = ("╌", "bold red")
NOTHING: Look = (" ", "")


@dataclass(frozen=True)
class Unit:
    """A unit in which an axis counts bytes or seconds.

    Attributes:
        name: The unit's symbol, such as "MiB".
        size: The number of bytes, or of seconds, in one unit.
    """

    name: str
    size: float


SIZES = (Unit("GiB", GiB), Unit("MiB", MiB), Unit("KiB", KiB))
TIMES = (Unit("s", 1.0), Unit("ms", 1e-3), Unit("us", 1e-6))


@dataclass(frozen=True)
class Scale:
    """An axis made of cells, with labels at equal distances.

    Attributes:
        low: The value at the lower edge of the first cell.
        interval: The difference between the values of two neighbouring labels.
        between: The number of cells from one label to the next.
        cells: The number of all cells.
        unit: The unit of the labels.
        digits: The number of a label's digits after the point.
    """

    low: float
    interval: float
    between: int
    cells: int
    unit: Unit
    digits: int

    @property
    def cell_size(self) -> float:
        """The range of values that a cell spans."""
        return self.interval / self.between

    @property
    def high(self) -> float:
        """The value at the upper edge of the last cell."""
        return self.low + self.cells * self.cell_size

    def cell(self, value: float) -> int:
        """Returns the cell of a value. A value at the edge of two cells is in the lower one."""
        return min(max(math.ceil((value - self.low) / self.cell_size) - 1, 0), self.cells - 1)

    def label(self, cell: int) -> str:
        """Returns the label at the upper edge of a cell; empty for most cells."""
        if (cell + 1) % self.between:
            return ""
        value = self.low + (cell + 1) // self.between * self.interval
        return f"{value / self.unit.size:.{self.digits}f}"


def round_scale(
    low: float, high: float, *, labels: int, cells: int, units: Sequence[Unit]
) -> Scale:
    """Returns a scale that contains `low` and `high` and has round labels.

    The interval between its labels is the smallest that makes this possible.

    Args:
        low: The least value; 0 for a scale that begins at zero.
        high: The largest value, above 0.
        labels: The number of labels.
        cells: The number of cells, at least `labels`.
        units: The units to choose from, the largest first.
    """
    unit = next((unit for unit in units if high >= unit.size), units[-1])
    between = cells // labels
    reach = cells / between  # the length of the axis, in intervals between labels
    for interval in _round_numbers(max((high - low) / reach, high * 1e-3) / unit.size):
        size = interval * unit.size
        begin = math.floor(low / size * (1 + 1e-9)) * size
        if (begin + reach * size) * (1 + 1e-9) >= high:
            break
    digits = next(n for n in range(9) if math.isclose(interval, round(interval, n), rel_tol=1e-6))
    return Scale(begin, size, between, cells, unit, digits)


def _round_numbers(least: float) -> Iterator[float]:
    """Yields, without end, the round numbers that are at least `least`, in ascending order."""
    power = 10.0 ** math.floor(math.log10(least))
    while True:
        for each in _INTERVALS:
            if each * power * (1 + 1e-9) >= least:
                yield each * power
        power *= 10.0


def margin(scale: Scale) -> int:
    """Returns how many columns the labels and the unit of a vertical axis need."""
    return max(len(scale.unit.name), *(len(scale.label(row)) for row in range(scale.cells)))


def row(scale: Scale, number: int, cells: Sequence[Look]) -> Text:
    """Returns a row of a picture: the cells, after the axis's label if this row has one."""
    label = scale.label(number)
    line = Text(f"{label:>{margin(scale)}} {'┤' if label else '│'}")
    for (sign, style), alike in groupby(cells):
        line.append(sign * len(list(alike)), style)
    line.rstrip()
    return line


def legend(entries: Iterable[tuple[Look, str]], width: int) -> Iterator[Text]:
    """Yields lines of at most `width` columns with the characters and their meanings."""
    line = Text()
    for (sign, style), name in entries:
        if line and len(line) + len(sign) + len(name) + 4 > width:
            yield line
            line = Text()
        line.append("  " if line else "").append(sign, style).append(f" {name}")
    yield line
