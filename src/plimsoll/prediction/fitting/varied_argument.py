"""Reads and sets the varied argument of the script.

It is an option ("--batch-size"), a position on the script's command line ("@1", the first), or an
environment variable ("env:BATCH").
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.prediction.survey import Survey, no_such_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.request import Request

_POSITION = re.compile("@([1-9][0-9]*)")
_VARIABLE = re.compile("env:([A-Za-z_][A-Za-z0-9_]*)")


def take_out(arguments: Sequence[str], name: str) -> tuple[int | None, list[str]]:
    """Returns a pair: the argument's value (None if it is not given), and all other arguments.

    A positional argument stays in the list, so that later arguments keep their positions.

    Raises:
        InputError: If the value is not a whole number above zero, or there is no such position.
    """
    if variable := _VARIABLE.fullmatch(name):
        text = os.environ.get(variable[1])
        return None if text is None else _number(text, name), [*arguments]
    if (place := _place(name)) is not None:
        if place >= len(arguments):
            raise InputError(
                f"{name} is an argument of the script, after --; it has {len(arguments)} there"
            )
        return _number(arguments[place], name), [*arguments]
    text, others = None, []
    rest = iter(arguments)
    for each in rest:
        if each == name:
            text = next(rest, "")
        elif each.startswith(f"{name}="):
            text = each.removeprefix(f"{name}=")
        else:
            others.append(each)
    return None if text is None else _number(text, name), others


def put_in(arguments: Sequence[str], name: str, value: int | None) -> list[str]:
    """Returns the arguments with the value of `name`; unchanged if `value` is None."""
    if value is None or _VARIABLE.fullmatch(name):
        return [*arguments]
    if (place := _place(name)) is not None:
        return [*arguments[:place], str(value), *arguments[place + 1 :]]
    return [*arguments, name, str(value)]


def variables(name: str, value: int | None) -> dict[str, str]:
    """Returns the environment variable that has the value; {} if `name` is no variable."""
    variable = _VARIABLE.fullmatch(name)
    return {} if variable is None or value is None else {variable[1]: str(value)}


def with_value(request: Request, name: str, value: int) -> Request:
    """Returns the request with a value of the varied argument."""
    arguments = put_in(request.arguments, name, value)
    environment = {**request.environment, **variables(name, value)}
    return replace(request, arguments=arguments, environment=environment)


def is_option(name: str) -> bool:
    """Returns whether the varied argument is an option, such as "--batch-size"."""
    return name.startswith("-")


def own_value(survey: Path, name: str) -> int | None:
    """Returns the option's value as `argparse` parsed it; None if unknown or not above zero.

    Raises:
        InputError: If the script has an option that differs only by dashes and underscores.
    """
    if not survey.exists():
        return None
    uses = Survey.from_dict(json.loads(survey.read_text())).arguments
    names = [each for use in uses for each in use.names]
    alike = [each for each in names if _plain(each) == _plain(name)]
    if alike and name not in names:
        raise InputError(no_such_option(name, alike))
    value = next((use.value for use in uses if name in use.names), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _plain(option: str) -> str:
    return option.lstrip("-").replace("_", "-")


def _place(name: str) -> int | None:
    position = _POSITION.fullmatch(name)
    return None if position is None else int(position[1]) - 1


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InputError(f"{name} needs a first value to vary: a number above zero, not {text!r}")
    return int(text)
