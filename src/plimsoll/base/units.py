"""Parses and formats sizes, counts and times."""

from __future__ import annotations

import re
from decimal import Decimal

from plimsoll.base.errors import InputError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

GRANULE = 2 * MiB
"""The smallest size that a GPU's driver maps. The elastic allocator works in this unit."""

_UNITS = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "k": KiB,
    "kib": KiB,
    "kb": 1000,
    "m": MiB,
    "mib": MiB,
    "mb": 1000**2,
    "g": GiB,
    "gib": GiB,
    "gb": 1000**3,
    "t": TiB,
    "tib": TiB,
    "tb": 1000**4,
}
_TOO_MUCH = 2**60
_MOST_MIB = 2**18  # if a number without a unit is larger, the user did not mean MiB
_LEAST_SHARE = 0.0005
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(size: int | str) -> int:
    """Converts "24GiB", "512 MiB", "80GB", "7.5G" or a number of bytes to bytes.

    KiB, MiB, GiB and TiB, or just K, M, G and T, are powers of 1024; KB, MB, GB and TB are powers
    of 1000. A text without a unit means bytes, and must be at least 1 MiB: a user who writes "24"
    probably means GiB.

    Raises:
        InputError: If `size` is not a size above zero.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InputError(f"not a size: {size!r}; write 24GiB, 512MiB or a number of bytes")
        number = Decimal(match[1])
        if not match[2] and 0 < number < MiB:
            raise InputError(f"{match[1]!r} has no unit, so it is bytes; {_meant(match[1])}")
        size = int(min(number * unit, Decimal(_TOO_MUCH)))
    if size <= 0:
        raise InputError(f"a size must be above zero, not {size}")
    if size >= _TOO_MUCH:
        raise InputError(f"a size of {size} bytes is more than any machine has")
    return size


def parse_memory(size: int | str) -> int:
    """Converts the size of a card's memory, a host's memory or a limit to bytes.

    Raises:
        InputError: If it is not a size, or below 1 MiB.
    """
    size_bytes = parse_size(size)
    if size_bytes < MiB:
        hint = f"; {_meant(str(size))}" if isinstance(size, int) else ", which is at least 1 MiB"
        raise InputError(f"{format_size(size_bytes)} is no size of memory{hint}")
    return size_bytes


def _meant(number: str) -> str:
    """Returns a question that adds the likely unit to a user's number: "did you mean 24GiB?"."""
    count = Decimal(number)
    unit = "GiB" if count < KiB else "MiB" if count < _MOST_MIB else "KiB"
    return f"did you mean {number}{unit}?"


def format_size(size: int) -> str:
    """Formats bytes for people: "512 bytes", "20.00 MiB", "9.52 GiB"."""
    if size < KiB:
        return f"{size} byte{'' if size == 1 else 's'}"
    for unit, name in ((KiB, "KiB"), (MiB, "MiB"), (GiB, "GiB")):
        shown = f"{size / unit:.2f}"
        if shown != "1024.00" and size < KiB * unit:
            return f"{shown} {name}"
    return f"{size / TiB:.2f} TiB"


def format_range(bounds: tuple[int, int] | None, by: str = "") -> str:
    """Returns text to append to a size: the bounds of the size, in parentheses.

    Returns "" if there are no bounds, or if both give the same text, such as "1.00 MiB". `by` is
    text that follows the bounds and says what they depend on.

    >>> format_range((1 << 20, 3 << 20), ", by data")
    '  (1.00 MiB to 3.00 MiB, by data)'
    """
    if bounds is None:
        return ""
    least, most = map(format_size, bounds)
    return "" if least == most else f"  ({least} to {most}{by})"


def size_row(size: int | None, what: str, whole: int | None = None) -> str:
    """Returns a row of a table of sizes: the size, its share of the whole, and its purpose.

    Args:
        size: The size in bytes; None means unknown.
        what: The purpose of the memory, in words.
        whole: The bytes of the whole; None shows no share.
    """
    shown = "?" if size is None else format_size(size)
    share = "" if whole is None or size is None else f"{size / max(whole, 1):6.1%}  "
    return f"{shown:>12}  {share}{what}"


def has_share(size: int, whole: int) -> bool:
    """Returns whether a size rounds to at least 0.1% of the whole; tables leave out smaller sizes.

    Args:
        size: The size in bytes.
        whole: The bytes of the whole.
    """
    return size / max(whole, 1) >= _LEAST_SHARE


def format_count(count: int, one: str, more: str | None = None) -> str:
    """Formats a count with its noun: "1 step", "1,024 steps", "2 processes"."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def format_seconds(seconds: float) -> str:
    """Formats a time with three digits: "26.2 ms", "1.05 s", "430 us"."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit * 0.9995:
            return f"{seconds / unit:.{_digits(seconds / unit)}f} {name}"
    return f"{seconds * 1e6:.0f} us"


def format_duration(seconds: float) -> str:
    """Formats a long time as one whole number: "14 s", "90 min", "3 h"."""
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 2:
        return f"{hours:.0f} h"
    return f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"


def _digits(number: float) -> int:
    """Returns how many digits to print after the point, so that a number has three digits."""
    return 2 if number < 9.995 else 1 if number < 99.95 else 0
