"""Finds how far a run's memory stays below the limits that the program set for itself.

If the simulated card has unlimited memory, the run may exceed a limit. The distance is then
negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.prediction.child.peak_contents import reserved_after
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.child.peak_contents import Run
    from plimsoll.torch.simulated.memory_limits import MemoryLimit


@dataclass(frozen=True)
class TightestLimit:
    """The program's own limit that left the least room.

    Attributes:
        limit_bytes: The most that PyTorch may reserve.
        left_bytes: `limit_bytes` minus the most that PyTorch reserved from the driver while the
            limit applied. Negative if that exceeded the limit.
    """

    limit_bytes: int
    left_bytes: int


def tightest_limit(
    limits: Sequence[MemoryLimit], run: Run, total_bytes: int
) -> TightestLimit | None:
    """Returns the limit with the least room left; None if the program set no limit.

    PyTorch checks a limit only when it takes memory from the driver, so memory that was reserved
    before the limit may exceed it.

    Args:
        limits: The limits of one GPU, in the order in which the program set them.
        run: The events of that GPU.
        total_bytes: The memory of that GPU.
    """
    reserved = reserved_after(run)
    takes = np.isin(run.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    highest = np.where(takes, reserved, 0)
    ends = [*(limit.event for limit in limits), len(reserved)]
    found = [
        TightestLimit(size, size - int(highest[begin:end].max(initial=0)))
        for limit, (begin, end) in zip(limits, pairwise(ends), strict=True)
        if limit.fraction < 1
        for size in [limit.bytes_of(total_bytes)]
    ]
    return min(found, key=lambda each: each.left_bytes, default=None)
