"""Ranks the rows of a sweep by a goal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.profiles import gpu_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.prediction.sweeps.parts import Row, SweepParts


def by_program(found: SweepParts) -> list[list[Row]]:
    """Returns a list of rows for each script or recording: its best row first, failed ones last."""
    programs = dict.fromkeys(row.case.name for row in found.rows)
    return [
        best_first([row for row in found.rows if row.case.name == program], found.goal, found)
        for program in programs
    ]


def best_first(rows: Iterable[Row], goal: str, found: SweepParts) -> list[Row]:
    """Returns the rows of one program, sorted: the best by a goal first, failed ones last."""
    return sorted(rows, key=lambda row: _rank(row, goal, found.prices))


def cost(row: Row, prices: Mapping[str, float]) -> float | None:
    """Returns the cost of a million samples on all cards of a case, in the currency of the prices.

    For a serving engine, returns the cost of its cards for an hour. Returns None if the cost is
    unknown or the row does not fit.
    """
    price = prices.get(card(row.case.gpu))
    if price is None or not row.fits:
        return None
    price *= row.case.cards
    if row.case.is_serving:
        return price
    if not row.samples_per_second:
        return None
    return price / 3600 * 1e6 / row.samples_per_second


def card(gpu: str | None) -> str:
    """Returns plimsoll's own name of a card for any accepted spelling; "" for None."""
    return "" if gpu is None else gpu_profile(gpu).name


def check_prices(gpus: Iterable[str], prices: Mapping[str, float], path: str) -> None:
    """Checks that each card has a price.

    Raises:
        InputError: If a card has no price.
    """
    for gpu in gpus:
        if card(gpu) not in prices:
            raise InputError(f"{path}: there is no price of {card(gpu)}")


def _rank(row: Row, goal: str, prices: Mapping[str, float]) -> tuple[float, ...]:
    """Returns a sort key, lower for a better row.

    Rows that fit come first, failed ones last. Among the rows that fit, those that lack the figure
    for the goal come last, sorted by the memory that they use.
    """
    used = math.inf if row.device_used_bytes is None else row.device_used_bytes
    samples = -(row.samples_per_second or 0.0)
    first = {
        "least-memory": used,
        "fits": math.inf if row.total_bytes is None else row.total_bytes * row.case.cards,
        "most-samples": samples,
        "least-cost": _or_infinite(cost(row, prices)),
    }[goal]
    return (row.error is not None, row.fits is not True, first, used, samples)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
