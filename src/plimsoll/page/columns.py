"""Packs columns of integers as text for a page: byte planes, deflated, in base64.

A column's values are brought close to zero and then split into planes: all lowest bytes, all second
bytes, and so on. Planes deflate far better than undivided numbers, and the page's script can
rebuild the numbers in a loop without branches. `web/history/columns.js` is the inverse.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Code = Literal["plain", "delta"]

MOST = 2**53
"""From this number on, JavaScript's numbers are not exact."""


def pack_column(values: NDArray[Any], code: Code = "plain") -> dict[str, Any]:
    """Packs a column of integers.

    Args:
        values: The numbers. Each number, and the difference of any two neighbours, must be below
            2**53.
        code: "delta" for values that grow or change slowly, "plain" for the rest.

    Raises:
        InputError: If a number is too large for a page.
    """
    if len(values) and int(values.max()) >= MOST:
        raise InputError(f"a value of {int(values.max())} is more than any machine has")
    numbers = values.astype(np.int64)
    least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    base = step = 0
    if len(numbers) and code == "delta":
        base = int(numbers[0])
        change = np.diff(numbers, prepend=numbers[:1])
        # Zigzag: numbers close to zero, positive or negative, become small numbers without a sign.
        numbers = (change << 1) ^ (change >> 63)
        step = 1
    elif len(numbers):
        base = least
        numbers = numbers - base
        step = int(np.gcd.reduce(numbers))
        if step > 1:
            numbers //= step
    top = int(numbers.max()) if len(numbers) else 0
    planes = (top.bit_length() + 7) // 8
    octets = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    raw = np.ascontiguousarray(octets[:, :planes].T).tobytes()
    return {
        "count": len(numbers),
        "code": code,
        "base": base,
        "step": step,
        "planes": planes,
        "least": least,
        "most": most,
        "data": base64.b64encode(zlib.compress(raw, 6)).decode() if raw else "",
    }


def packed_size(columns: dict[str, dict[str, Any]]) -> int:
    """Returns the approximate bytes that packed columns take in a page."""
    return sum(len(column["data"]) + 120 for column in columns.values())
