"""Expands Slurm's lists of hosts, as in SLURM_JOB_NODELIST: node[01-16,20],login1."""

from __future__ import annotations

import re

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable

_MOST_HOSTS = 4096
_BETWEEN_HOSTS = re.compile(r",(?![^\[]*\])")
_NUMBERS = re.compile(r"(?P<before>[^\[]*)\[(?P<ranges>[\d,-]*)\](?P<after>.*)")
_FORM = "write a list of hosts as node[1-3,7] or node[01-16]"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def hosts_in(text: str) -> list[str]:
    """Returns the names in a list of hosts, in order; a name without brackets is a list of one.

    Numbers keep their leading zeros: node[08-10] is node08, node09 and node10. An address with
    :// is not divided at commas. The brackets around an IPv6 address are part of the name.

    Raises:
        InputError: If the text in brackets is neither a list of numbers and ranges nor an IPv6
            address, or the list of hosts is too long.
    """
    parts = [text] if "://" in text else _BETWEEN_HOSTS.split(text)
    names: list[str] = []
    for part in parts:
        names += _expanded(part, text, _MOST_HOSTS)
    if len(names) > _MOST_HOSTS:
        raise InputError(f"{printable(text)} has more than {_MOST_HOSTS} hosts")
    return names


def _expanded(name: str, text: str, most: int) -> list[str]:
    found = _NUMBERS.fullmatch(name)
    if found is None and "[" in name and ":" not in name:  # a colon means an IPv6 address
        raise InputError(f"{printable(text)} is no list of hosts: {_FORM}")
    if found is None:
        return [name]
    numbers = _numbers(found["ranges"], text, most)
    endings = _expanded(found["after"], text, most)
    if len(numbers) * len(endings) > most:
        raise InputError(f"{printable(text)} has more than {_MOST_HOSTS} hosts")
    return [f"{found['before']}{number}{ending}" for number in numbers for ending in endings]


def _numbers(ranges: str, text: str, most: int) -> list[str]:
    numbers: list[str] = []
    for each in ranges.split(","):
        found = _RANGE.fullmatch(each)
        first, last = (found[1], found[2] or found[1]) if found is not None else ("1", "0")
        if int(first) > int(last):
            raise InputError(
                f"{printable(text)}: {printable(each)!r} is no range of numbers; {_FORM}"
            )
        if int(last) - int(first) >= most - len(numbers):
            raise InputError(f"{printable(text)} has more than {_MOST_HOSTS} hosts")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers
