"""Reads and sets the varied argument on the script's command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.prediction.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Sequence


def take_out(arguments: Sequence[str], name: str) -> tuple[int | None, list[str]]:
    """Returns a pair: the argument's value (None if it is not given), and all other arguments.

    Raises:
        InputError: If the value is not a whole number above zero.
    """
    text, others = None, []
    rest = iter(arguments)
    for each in rest:
        if each == name:
            text = next(rest, "")
        elif each.startswith(f"{name}="):
            text = each.removeprefix(f"{name}=")
        else:
            others.append(each)
    if text is None:
        return None, others
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InputError(f"{name} needs a first value to vary: a number above zero, not {text!r}")
    return int(text), others


def put_in(arguments: Sequence[str], name: str, value: int | None) -> list[str]:
    """Returns the arguments, with `name` and `value` added unless `value` is None."""
    return [*arguments] if value is None else [*arguments, name, str(value)]


def own_value(survey: Path, name: str) -> int | None:
    """Returns the argument's value as `argparse` parsed it; None if unknown or not above zero."""
    if not survey.exists():
        return None
    uses = Survey.from_dict(json.loads(survey.read_text())).arguments
    value = next((use.value for use in uses if name in use.names), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
