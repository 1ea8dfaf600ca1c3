"""Reduces the memory use of a simulated run over time to the few points of a picture."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.page.overview import bytes_by_group
from plimsoll.prediction.parts import CATEGORIES
from plimsoll.prediction.timeline import MOST_POINTS, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes

_MOST_STEPS = 8
"""The picture shows all steps of a run that has at most this number of steps.

If a run has more steps, the picture shows `_AROUND_THE_PEAK` successive ones, among them the step
with the peak.
"""
_AROUND_THE_PEAK = 3


def over_time(
    blocks: Lifetimes,
    rounded: NDArray[np.uint64],
    category: NDArray[np.uint8],
    reserved: NDArray[np.int64],
    steps: Sequence[int],
) -> Timeline | None:
    """Returns the points of the picture; None if the run has no events.

    If the run has many steps, the picture shows only those around the peak.

    Args:
        blocks: The run's blocks.
        rounded: The rounded size of each block.
        category: Each block's index into `CATEGORIES`.
        reserved: The bytes reserved from the driver after each event.
        steps: The events at which a step ended.
    """
    level = blocks.level(rounded)
    if not len(level):
        return None
    first, end, first_step, ends = _part(level, steps)
    bounds = np.unique(np.linspace(first, end, MOST_POINTS + 1).astype(np.int64))
    moments = np.array([low + int(np.argmax(level[low:high])) for low, high in pairwise(bounds)])
    sizes = bytes_by_group(blocks, category, blocks.size, len(CATEGORIES), moments)
    sizes[:, CATEGORIES.index("rounding")] += level[moments] - sizes.sum(axis=1)
    points = np.searchsorted(bounds, ends, side="left") - 1
    return Timeline(
        first_event=first,
        end_event=end,
        by_category={
            name: sizes[:, i].tolist() for i, name in enumerate(CATEGORIES) if sizes[:, i].any()
        },
        reserved_bytes=np.maximum.reduceat(reserved[:end], bounds[:-1]).tolist(),
        first_step=first_step,
        step_ends=points.tolist(),
    )


def _part(level: NDArray[np.int64], steps: Sequence[int]) -> tuple[int, int, int, list[int]]:
    """Returns the part of the run to show.

    Returns four values: the part's first event, the event after its last, the number of its first
    step (counted from 1), and the events at which its steps end.
    """
    ends = sorted({end for end in steps if 0 < end <= len(level)})
    if len(ends) <= _MOST_STEPS:
        return 0, len(level), 1, ends
    top = int(np.searchsorted(ends, np.argmax(level), side="right"))
    first = min(max(top - 1, 0), len(ends) - _AROUND_THE_PEAK)
    shown = ends[first : first + _AROUND_THE_PEAK]
    return ends[first - 1] if first else 0, shown[-1], first + 1, shown
