"""Tests the table of chips, and which row plimsoll uses for a chip without a row of its own."""

from __future__ import annotations

from plimsoll.engine.gpus.profiles import gpu_profiles
from plimsoll.torch.building.tables import read_numbers
from plimsoll.torch.simulated.chips import chip_of
from plimsoll.torch.simulated.library import SIMULATED_GPU


def rows_of(name: str) -> list[dict[str, int]]:
    assert SIMULATED_GPU.tables is not None
    return read_numbers(SIMULATED_GPU.tables / name)


def test_each_card_has_a_row_of_its_own() -> None:
    known = {(row["major"], row["minor"]) for row in rows_of("chips.csv")}
    assert {card.compute_capability for card in gpu_profiles()} <= known


def test_rows_are_in_ascending_order() -> None:
    rows = rows_of("chips.csv")
    assert rows == sorted(rows, key=lambda row: [*row.values()])


def test_what_is_unknown_takes_the_row_before_it() -> None:
    assert chip_of((8, 8)) == chip_of((8, 7))
    assert chip_of((13, 0)) == chip_of((12, 1))
    assert chip_of((5, 2)) == chip_of((6, 0))
