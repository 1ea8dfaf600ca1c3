"""Reads the columns of integers in a page, as the page's script does."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def unpack_column(column: dict[str, Any]) -> NDArray[np.int64]:
    """Returns the numbers of a column that `pack_column` packed."""
    count, planes = column["count"], column["planes"]
    octets = np.zeros((count, 8), dtype=np.uint8)
    if planes:
        raw = zlib.decompress(base64.b64decode(column["data"]))
        octets[:, :planes] = np.frombuffer(raw, dtype=np.uint8).reshape(planes, count).T
    numbers = octets.view("<i8").reshape(-1)
    if column["code"] == "delta":
        numbers = np.cumsum((numbers >> 1) ^ -(numbers & 1))
    else:
        numbers = numbers * column["step"]
    result: NDArray[np.int64] = numbers + column["base"]
    return result
