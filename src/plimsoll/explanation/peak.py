"""Finds the peak of allocated memory, and its live blocks by category and source line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.explanation.parts import Peak
from plimsoll.recordings.analysis.category_names import CATEGORIES
from plimsoll.recordings.analysis.lines import LineShare
from plimsoll.recordings.analysis.rounding import rounded_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.categories import Categories
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.recording import DeviceTrace


def find_peak(
    trace: DeviceTrace,
    lifetimes: Lifetimes,
    steps: Steps,
    categories: Categories,
    line: NDArray[np.int64] | None,
    names: Sequence[str],
    round_request: Callable[[int], int],
    allocated_bytes: int,
    *,
    lines: int = 10,
) -> Peak:
    """Finds the peak and its parts.

    Args:
        trace: The events.
        lifetimes: The blocks.
        steps: The program's steps.
        categories: The use of each block.
        line: For each block, the number of its source line; None without stacks.
        names: The source line for each number in `line`.
        round_request: A function that returns the block size for a requested size.
        allocated_bytes: The bytes allocated at the peak, as a replay computes them. If the
            allocator did not split a block because the rest was too small, that rest is included.
            It counts as rounding.
        lines: The maximum number of source lines that the result names.
    """
    rounded = rounded_sizes(lifetimes.size, round_request)
    level = lifetimes.level(rounded)
    event = int(level.argmax()) if len(level) else 0
    live = lifetimes.live_at(event)
    live_sizes = lifetimes.size[live].astype(np.int64)
    requested = int(live_sizes.sum())
    allocated = max(allocated_bytes, int(rounded[live].sum()))
    by_number = np.bincount(categories.number[live], live_sizes, len(CATEGORIES))
    by_category = {
        name: int(size) for name, size in zip(CATEGORIES, by_number.tolist(), strict=True)
    }
    by_category["rounding"] = allocated - requested
    return Peak(
        event=event,
        step=step_of(steps, event),
        seconds=_seconds(trace, event),
        allocated_bytes=allocated,
        requested_bytes=requested,
        blocks=len(live),
        by_category=by_category,
        categories_from=categories.source,
        lines=[] if line is None else line_shares(line[live], live_sizes, names, lines),
    )


def line_shares(
    line: NDArray[np.int64], sizes: NDArray[np.int64], names: Sequence[str], most: int
) -> list[LineShare]:
    """Returns the lines that hold the most bytes."""
    held = np.bincount(line, sizes, len(names)).astype(np.int64)
    blocks = np.bincount(line, minlength=len(names))
    top = np.argsort(-held, kind="stable")[:most]
    return [LineShare(names[one], int(held[one]), int(blocks[one])) for one in top if blocks[one]]


def step_of(steps: Steps, event: int) -> int | None:
    """Returns the step of an event, from 0; None before the first and after the last step."""
    step = int(np.searchsorted(steps.boundaries, event, side="right")) - 1
    return step if 0 <= step < len(steps) else None


def run_seconds(trace: DeviceTrace) -> float | None:
    """Returns the time from the first event to the last; None if the recording has no times."""
    ends = [int(end) for batch in trace.batches() for end in batch.time_us[[0, -1]]]
    seconds = (ends[-1] - ends[0]) * 1e-6 if ends else 0.0
    return seconds if seconds > 0 else None


def _seconds(trace: DeviceTrace, event: int) -> float | None:
    first: int | None = None
    for batch in trace.batches():
        if first is None:
            first = int(batch.time_us[0])
        if event < len(batch):
            microseconds = int(batch.time_us[event]) - first
            return microseconds * 1e-6 if batch.time_us[event] > 0 else None
        event -= len(batch)
    return None
