"""Reads and writes plans as JSON files, whose form docs/plans.md explains.

A file may come from an untrusted source, so all of it is checked before any of it is used.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.base.units import format_size
from plimsoll.engine.plans.program_plan import MadeFor, Plan, RankPlan

if TYPE_CHECKING:
    from os import PathLike

VERSION = 1
"""The version of the file's form, stored as "plimsoll_plan"."""
MOST_BYTES = 64 << 20
"""The largest size of a plan file."""
_MOST_RANKS = 1 << 16
_MOST_DEVICES = 64
_MOST_TEXT = 4096
_MOST_ARGUMENTS = 1024
_MOST_NUMBER = (1 << 63) - 1
_ELSEWHERE = (1 << 64) - 1
"""In `_core`, this offset means that a request has no planned place. The file has null for it."""


class _WrongError(Exception):
    """The file's content is not a valid plan."""


def write_plan(plan: Plan, path: str | PathLike[str], *, force: bool = False) -> None:
    """Writes a plan to a file.

    Args:
        plan: The plan.
        path: The file.
        force: Whether an existing file is replaced.

    Raises:
        InputError: If the file exists and `force` is not set, or the file cannot be written.
    """
    values = {
        "plimsoll_plan": VERSION,
        "made_for": asdict(plan.made_for),
        "ranks": [
            {
                "rank": each.rank,
                "devices": [
                    {"device": device, "streams": [*map(_stream_values, one.streams)]}
                    for device, one in sorted(each.devices.items())
                ],
            }
            for each in plan.ranks
        ],
    }
    with NewFile(path, force=force) as file:
        file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")


def read_plan(path: str | PathLike[str]) -> Plan:
    """Reads a plan from a file.

    Raises:
        InputError: If there is no such file, or it is not a valid plan; the message is one line.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: no plan: larger than {format_size(MOST_BYTES)}")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: no plan: not JSON") from None
    try:
        return _plan(values)
    except _WrongError as error:
        raise InputError(f"{path}: no plan: {error}") from None


def _stream_values(stream: tuple[Any, Any, int]) -> dict[str, Any]:
    sections, slots, outside = stream
    return {
        "outside": outside,
        "sections": [list(section) for section in sections],
        "slots": [
            [size, least, None if offset == _ELSEWHERE else offset] for size, least, offset in slots
        ],
    }


def _plan(values: Any) -> Plan:
    if not isinstance(values, dict) or "plimsoll_plan" not in values:
        raise _WrongError('there is no "plimsoll_plan"')
    if type(values["plimsoll_plan"]) is not int or values["plimsoll_plan"] != VERSION:
        raise _WrongError(
            f'this plimsoll reads plans of the form {VERSION}, not of this "plimsoll_plan"'
        )
    ranks = tuple(_rank(each) for each in _list(values, "ranks", _MOST_RANKS))
    if len({each.rank or 0 for each in ranks}) < len(ranks):  # a plan without a rank is rank 0's
        raise _WrongError("a rank has two plans")
    return Plan(_made_for(values.get("made_for")), ranks)


def _made_for(values: Any) -> MadeFor:
    if not isinstance(values, dict):
        raise _WrongError('"made_for" is no object')
    arguments = values.get("arguments")
    if arguments is not None:
        arguments = tuple(_list(values, "arguments", _MOST_ARGUMENTS))
        if not all(isinstance(each, str) and len(each) <= _MOST_TEXT for each in arguments):
            raise _WrongError('"arguments" are no texts')
    return MadeFor(_text(values, "script"), arguments, _text(values, "torch"), _text(values, "gpu"))


def _rank(values: Any) -> RankPlan:
    if not isinstance(values, dict):
        raise _WrongError("a rank is no object")
    rank = None if values.get("rank") is None else _number(values["rank"], "a rank")
    devices: dict[int, _core.ProgramPlan] = {}
    for each in _list(values, "devices", _MOST_DEVICES):
        if not isinstance(each, dict):
            raise _WrongError("a device is no object")
        device = _number(each.get("device"), "a device")
        if device in devices:
            raise _WrongError(f"device {device} has two plans")
        devices[device] = _device(each)
    return RankPlan(rank, devices)


def _device(values: dict[str, Any]) -> _core.ProgramPlan:
    streams = []
    for stream in _list(values, "streams", _MOST_NUMBER):
        if not isinstance(stream, dict):
            raise _WrongError("a stream is no object")
        sections = [_row(row, 2, "a section") for row in _list(stream, "sections", _MOST_NUMBER)]
        if any(number >= 1 << 32 for section in sections for number in section):
            raise _WrongError("a section has too many slots, or is gone through too often")
        slots = [
            _row([*row[:2], _ELSEWHERE if row[2] is None else row[2]], 3, "a slot")
            if isinstance(row, list) and len(row) == 3
            else _row(row, 3, "a slot")
            for row in _list(stream, "slots", _MOST_NUMBER)
        ]
        streams.append((sections, slots, _number(stream.get("outside"), '"outside"')))
    try:
        return _core.ProgramPlan(streams)  # type: ignore[arg-type]
    except ValueError as error:
        raise _WrongError(str(error)) from None


def _row(values: Any, count: int, what: str) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) != count:
        raise _WrongError(f"{what} is no list of {count} numbers")
    return tuple(
        value if value == _ELSEWHERE and type(value) is int else _number(value, what)
        for value in values
    )


def _list(values: dict[str, Any], key: str, most: int) -> list[Any]:
    found = values.get(key)
    if not isinstance(found, list) or len(found) > most:
        raise _WrongError(f'"{key}" is no list, or too long')
    return found


def _number(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise _WrongError(f"{what} has something that is no number from 0 on")
    return value


def _text(values: dict[str, Any], key: str) -> str | None:
    found = values.get(key)
    if found is not None and (not isinstance(found, str) or len(found) > _MOST_TEXT):
        raise _WrongError(f'"{key}" is no text, or too long')
    return found
