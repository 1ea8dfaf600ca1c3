"""The limits that a program sets on its memory of a GPU by `set_per_process_memory_fraction`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = "per_process_memory_fraction"


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the memory of one GPU, in force from a certain event on.

    Attributes:
        event: The number of recorded events of the GPU before the limit was set.
        fraction: The part of the card's memory that PyTorch may reserve; 1 is no limit.
    """

    event: int
    fraction: float

    def bytes_of(self, total_bytes: int) -> int:
        """Returns the limit in bytes on a card with `total_bytes` of memory."""
        return int(self.fraction * total_bytes)


def heeded(limits: Sequence[MemoryLimit]) -> list[MemoryLimit]:
    """Returns the limits of one GPU, in order.

    A limit is left out if the GPU had no event between this limit and the next.
    """
    before_others = [limit for limit, after in pairwise(limits) if after.event > limit.event]
    return [*before_others, limits[-1]]


def without_limit(conf: str) -> str:
    """Returns allocator settings without `per_process_memory_fraction`.

    A replay uses them on a card whose memory is already reduced to the limit.
    """
    parts = conf.split(",")
    return ",".join(part for part in parts if part.partition(":")[0].strip() != _KEY)
