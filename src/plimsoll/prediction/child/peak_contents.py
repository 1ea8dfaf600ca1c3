"""Finds the live blocks at a simulated run's peak, and what each of them is used for.

This module is independent of PyTorch. It gets the events as columns. Call stacks name the lines
that requested the memory, and labels say what the memory is used for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.prediction.child.over_time import over_time
from plimsoll.prediction.parts import CATEGORIES
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.categories import find_categories
from plimsoll.recordings.analysis.lines import LineShare
from plimsoll.recordings.analysis.steps import NO_STEPS, find_steps
from plimsoll.recordings.causes.reserved_peak import reserved_change
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.recording import LoadedTrace, Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.prediction.timeline import Timeline
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.events import Frame
    from plimsoll.recordings.label import Label


@dataclass(frozen=True)
class Run:
    """The events of one device as columns of equal length, and facts about them.

    Attributes:
        action: Codes of `Action`.
        address: Addresses.
        size: Requested bytes.
        shared: The bytes of the block in shared memory (host memory that the GPU uses directly).
        stream: The streams.
        site: For each event, the number of the call stack that made the request or the free.
        frames: Takes the number of a call stack, and returns its frames. One of the frames may
            describe the origin of the request (`plimsoll.recordings.origin`).
        labels: The uses of blocks. Each label names the use of the block at one address.
        round_request: Returns the size of the block for a request.
        steps: The events at which a step of the program ended.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: NDArray[np.uint64]
    shared: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    site: NDArray[np.uint32]
    frames: Callable[[int], list[Frame]]
    labels: Sequence[Label]
    round_request: Callable[[int], int]
    steps: Sequence[int]


@dataclass(frozen=True)
class PeakContents:
    """The live blocks at the peak of allocated memory, and memory over the run.

    Attributes:
        event: The number of the event at the peak.
        allocated_bytes: The sum of requested sizes and rounding, without the unused ends of blocks
            that the allocator did not split.
        by_category: Bytes by category.
        top_lines: The source lines that hold the most bytes.
        step_peaks_bytes: The most bytes that were allocated within each step.
        shared_by_category: The bytes in shared memory by category, at the peak of shared memory.
        shared_lines: The source lines that hold the most bytes in shared memory at that peak.
        level: The allocated bytes after each event: requested sizes and rounding.
        timeline: Memory over the run by category; None if the run has no events.
        blocks: All blocks of the run. The column `blocks.stack` holds call stack numbers, as
            `Run.site` does.
        rounded: The rounded size of each block.
        category: The use of each block, an index into `CATEGORIES` of `category_names`.
        steps: The ends of the optimizers' steps.
    """

    event: int
    allocated_bytes: int
    by_category: dict[str, int]
    top_lines: list[LineShare]
    step_peaks_bytes: list[int]
    shared_by_category: dict[str, int]
    shared_lines: list[LineShare]
    level: NDArray[np.int64]
    timeline: Timeline | None
    blocks: Lifetimes
    rounded: NDArray[np.uint64]
    category: NDArray[np.uint8]
    steps: Steps


def find_peak(run: Run, line_of: Callable[[int], str], *, lines: int = 10) -> PeakContents:
    """Finds the peak of allocated memory and what it consists of.

    Args:
        run: The events.
        line_of: Takes the number of a call stack, and returns its source line.
        lines: The number of source lines to name.
    """
    blocks, rounded = blocks_of(run)
    level = blocks.level(rounded)
    top = int(np.argmax(level)) if len(level) else 0
    live = blocks.live_at(top)
    ends = [Mark(end, 0, "step") for end in run.steps if end > 0]
    steps = find_steps(blocks, ends) if ends else NO_STEPS
    failures = np.flatnonzero(run.action == Action.OOM).tolist()
    category = find_categories(blocks, steps, run.frames, failures, run.labels).number

    def shares(
        chosen: NDArray[np.int64], sizes: NDArray[np.uint64]
    ) -> tuple[dict[str, int], list[LineShare]]:
        by_category = dict.fromkeys(CATEGORIES, 0)
        by_line: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for block in chosen.tolist():
            size = int(sizes[block])
            by_category[CATEGORIES[category[block]]] += size
            line = line_of(int(blocks.stack[block]))
            by_line[line] += size
            count[line] += 1
        top_lines = by_line.most_common(lines)
        return by_category, [LineShare(line, size, count[line]) for line, size in top_lines]

    by_category, top_lines = shares(live, blocks.size)
    by_category["rounding"] = int(rounded[live].sum() - blocks.size[live].sum())
    in_shared = int(np.argmax(blocks.level(blocks.shared))) if len(level) else 0
    spilled = blocks.live_at(in_shared)
    shared_by_category, shared_lines = shares(spilled[blocks.shared[spilled] > 0], blocks.shared)
    return PeakContents(
        event=top,
        allocated_bytes=int(level[top]) if len(level) else 0,
        by_category=by_category,
        top_lines=top_lines,
        step_peaks_bytes=_step_peaks(level, run.steps),
        shared_by_category=shared_by_category,
        shared_lines=shared_lines,
        level=level,
        timeline=over_time(blocks, rounded, category, reserved_after(run), run.steps),
        blocks=blocks,
        rounded=rounded,
        category=category,
        steps=steps,
    )


def blocks_of(run: Run) -> tuple[Lifetimes, NDArray[np.uint64]]:
    """Returns a run's blocks and their rounded sizes.

    The column `stack` of the blocks holds call stack numbers, as `run.site` does.
    """
    nothing = np.zeros(len(run.action), dtype=np.uint64)
    columns: dict[str, NDArray[Any]] = {
        "action": run.action,
        "address": run.address,
        "size": run.size,
        "shared": run.shared,
        "stream": run.stream,
        "stack": run.site,
        **dict.fromkeys(("time_us", "pool_first", "pool_second"), nothing),
    }
    blocks = find_lifetimes(LoadedTrace(0, EventBatch.of(columns), []))
    sizes, size_of = np.unique(blocks.size, return_inverse=True)
    rounded = np.array([run.round_request(int(size)) for size in sizes], dtype=np.uint64)[size_of]
    return blocks, rounded


def reserved_after(run: Run) -> NDArray[np.int64]:
    """Returns the bytes reserved from the driver after each event."""
    return np.cumsum(reserved_change(run.action, run.size))


def _step_peaks(level: NDArray[np.int64], steps: Sequence[int]) -> list[int]:
    peaks = []
    begin = 0
    for end in steps:
        if end > begin:
            peaks.append(int(level[begin:end].max()))
            begin = end
    return peaks
