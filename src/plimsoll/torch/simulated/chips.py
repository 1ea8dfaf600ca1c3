"""Properties of chips: the rows of data/chips.csv.

The rows are also compiled into the C++ library, where `csrc/chips` reads them. If a chip has no
row, `csrc/chips` uses the nearest row, and the simulation's report says so.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from plimsoll.torch.building.tables import read_numbers

_TABLE = Path(__file__).parent / "data" / "chips.csv"


@dataclass(frozen=True)
class Chip:
    """The columns of data/chips.csv that Python reads; comments in that file explain them."""

    lanes: int
    multiplies_by_warp_groups: bool
    has_measured_times: bool
    network_gbit_per_s: int


def nearest_row(table: Path, capability: tuple[int, int]) -> dict[str, int]:
    """Returns a table's row for chips of a compute capability.

    If the table has no row of that capability, returns the row of the next lower capability. If all
    rows are of higher capabilities, returns the first row.

    Args:
        table: A .csv file whose rows are in ascending order of their compute capabilities.
        capability: The compute capability.
    """
    rows = read_numbers(table)
    known = [(row["major"], row["minor"]) for row in rows]
    return rows[max(bisect(known, capability) - 1, 0)]


@cache
def chip_of(capability: tuple[int, int]) -> Chip:
    """Returns the properties of chips of a compute capability, from the table's `nearest_row`."""
    row = nearest_row(_TABLE, capability)
    return Chip(
        row["lanes"], bool(row["warp_groups"]), bool(row["measured"]), row["network_gbit_per_s"]
    )
