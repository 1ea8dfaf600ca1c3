"""Finds the timeline's marks: failed requests, released memory, steps, the program's own marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from plimsoll.base.printable import printable
from plimsoll.base.units import format_size
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.events import EventBatch
    from plimsoll.recordings.recording import Mark

Kind = Literal["oom", "retry", "collection", "empty_cache", "step", "mark"]


@dataclass(frozen=True)
class Moment:
    """A mark on the timeline.

    Attributes:
        event: The number of the event at which the mark stands.
        kind: The kind of mark.
        text: The text that the page shows.
        stack: The index of the call stack that led to the event; None if it is unknown.
    """

    event: int
    kind: Kind
    text: str
    stack: int | None = None


def find_failures(
    events: EventBatch, numbers: NDArray[np.int64], stacks: Sequence[int]
) -> list[Moment]:
    """Returns a mark for each failed request.

    Args:
        events: The events of segments and failures.
        numbers: The numbers of these events in the history.
        stacks: For each failure, the index of the call stack of the request.
    """
    rows = np.flatnonzero(events.action == Action.OOM)
    return [
        Moment(
            int(numbers[row]),
            "oom",
            f"out of memory: {format_size(int(events.size[row]))} more was needed, the device had "
            f"{format_size(int(events.address[row]))} free",
            stack,
        )
        for row, stack in zip(rows.tolist(), stacks, strict=True)
    ]


def find_releases(
    events: EventBatch, numbers: NDArray[np.int64], reserved_before: int, *, collects: bool
) -> list[Moment]:
    """Returns a mark for each release of cached memory, with the cause that plimsoll assumes.

    If the driver refuses memory, PyTorch releases cached memory and tries again. plimsoll finds the
    cause from the event directly after the release. If that event is a failed request, the cause is
    a retry. If PyTorch reserves memory and a garbage collection threshold is set, the cause is a
    garbage collection or a retry. Without a threshold, the cause is a retry if the memory reserved
    before the release, plus the new memory, exceeds the highest reserved memory of the history. In
    all other cases plimsoll assumes a call of `empty_cache`.

    Args:
        events: The events of segments and failures.
        numbers: The numbers of these events in the history.
        reserved_before: The bytes reserved before the first event.
        collects: Whether a garbage collection threshold was set.
    """
    takes = np.isin(events.action, [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])
    gives = np.isin(events.action, [Action.SEGMENT_FREE, Action.SEGMENT_UNMAP])
    sizes = events.size.astype(np.int64)
    level = reserved_before + np.cumsum(np.where(takes, sizes, 0) - np.where(gives, sizes, 0))
    most = max(int(level.max(initial=0)), reserved_before)
    found: list[Moment] = []
    row = 0
    while row < len(events):
        if not gives[row]:
            row += 1
            continue
        first = row
        while row < len(events) and gives[row] and numbers[row] == numbers[first] + row - first:
            row += 1
        bytes_ = int(sizes[first:row].sum())
        text = f"{format_size(bytes_)} of cached memory went back to the driver"
        at_once = row < len(events) and numbers[row] == numbers[row - 1] + 1
        kind: Kind = "empty_cache"
        if at_once and events.action[row] == Action.OOM:
            kind = "retry"
        elif at_once and takes[row]:
            before = int(level[first - 1]) if first else reserved_before
            if collects:
                kind = "collection"
            elif before + int(sizes[row]) > most:
                kind = "retry"
        found.append(Moment(int(numbers[first]), kind, f"{_NAMES[kind]}: {text}"))
    return found


_NAMES = {
    "retry": "retry of a refused request",
    "collection": "garbage collection or retry",
    "empty_cache": "empty_cache",
}


def step_moments(steps: Steps, event_count: int) -> list[Moment]:
    """Returns a mark for the end of each step. No step ends at the first boundary."""
    ends = steps.boundaries[1:].tolist()
    return [
        Moment(min(event, event_count - 1), "step", f"step {number} ends")
        for number, event in enumerate(ends, start=1)
    ]


def named_marks(marks: Iterable[Mark], device: int, event_count: int) -> list[Moment]:
    """Returns the marks that the program itself set on one device, except the ends of steps."""
    return [
        Moment(min(max(mark.event, 0), event_count - 1), "mark", printable(mark.name))
        for mark in marks
        if mark.device in (None, device) and mark.name != "step"
    ]
