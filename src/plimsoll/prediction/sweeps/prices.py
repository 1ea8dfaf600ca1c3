"""Reads the prices of cards from a file."""

from __future__ import annotations

import csv
import math
import tomllib
from pathlib import Path

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.profiles import gpu_profile


def read_prices(path: str) -> dict[str, float]:
    """Returns the price of an hour of each card, by the card's name, in the file's currency.

    Args:
        path: A TOML file of lines `"RTX 4090" = 0.69`, or a CSV file of lines `RTX 4090,0.69`.

    Raises:
        InputError: If the file cannot be read, a card is unknown, or a price is invalid.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.lower().endswith(".csv"):
            lines = [line for line in csv.reader(text.splitlines()) if line]
            pairs: list[tuple[str, object]] = [(line[0], ",".join(line[1:])) for line in lines]
        else:
            pairs = list(tomllib.loads(text).items())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error, RecursionError) as error:
        raise InputError(f"{path}: is no table of prices: {error}") from None
    return {_card(path, name): _price(path, name, value) for name, value in pairs}


def _card(path: str, name: str) -> str:
    try:
        return gpu_profile(name.strip()).name
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _price(path: str, name: str, value: object) -> float:
    try:
        price = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        price = math.nan
    if isinstance(value, bool) or not 0 < price < math.inf:
        raise InputError(f"{path}: the price of {name} is a number above 0, not {value!r:.40}")
    return price
