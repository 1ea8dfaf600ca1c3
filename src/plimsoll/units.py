"""Sizes as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal

from plimsoll import _core
from plimsoll.errors import InputError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

_UNITS = {
    "": 1,
    "b": 1,
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
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(size: int | str) -> int:
    """Turn "24GiB", "512 MiB", "80GB", "7.5G" or a number of bytes into bytes.

    KiB, MiB, GiB and TiB, or just K, M, G and T, are powers of 1024; KB, MB, GB and TB are powers
    of 1000.

    Raises:
        InputError: If it is not a size above zero.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InputError(f"not a size: {size!r}; write 24GiB, 512MiB or a number of bytes")
        size = int(min(Decimal(match[1]) * unit, Decimal(_TOO_MUCH)))
    if size <= 0:
        raise InputError(f"a size must be above zero, not {size}")
    if size >= _TOO_MUCH:
        raise InputError(f"a size of {size} bytes is more than any machine has")
    return size


def format_size(size: int) -> str:
    """Show bytes for people, as PyTorch's messages do: "512 bytes", "20.00 MiB", "9.52 GiB"."""
    return _core.format_bytes(size)
