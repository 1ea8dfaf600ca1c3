"""What depends on PyTorch's version: the rows of data/torch_versions.csv, as in `csrc/chips`."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.torch.building.tables import read_numbers

if TYPE_CHECKING:
    from plimsoll.torch.building.versions import Version

_TABLE = Path(__file__).parent / "data" / "torch_versions.csv"


@dataclass(frozen=True)
class TorchRules:
    """The columns that Python reads; the file says what they are.

    Attributes:
        cuda: As people write it: "13.0".
        triton: The same.
    """

    cuda: str
    triton: str
    has_nccl_successor: bool


@cache
def torch_rules(version: Version) -> TorchRules:
    """The row of a version of PyTorch, or the one before it where there is none."""
    rows = read_numbers(_TABLE)
    known = [row["version"] for row in rows]
    row = rows[max(bisect(known, version[0] * 100 + version[1]) - 1, 0)]
    return TorchRules(
        f"{row['cuda'] // 10}.{row['cuda'] % 10}",
        f"{row['triton'] // 10}.{row['triton'] % 10}",
        bool(row["nccl_successor"]),
    )
