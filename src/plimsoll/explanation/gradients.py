"""Edits a history so that gradients are freed at the end of the step that allocated them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.explanation.edited_history import requests_alone
from plimsoll.recordings.analysis.category_names import CATEGORIES

if TYPE_CHECKING:
    from plimsoll.recordings.analysis.categories import Categories
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.recording import Recording


def with_earlier_zero_grad(
    recording: Recording, lifetimes: Lifetimes, steps: Steps, categories: Categories
) -> tuple[Recording, Recording] | None:
    """Returns two copies of a recording: one frees blocks as recorded, one frees gradients earlier.

    Both contain only the requests and frees of the program, not the allocator's own events. So they
    differ only in when they free gradients. Returns None if the program already frees all gradients
    within their step.
    """
    if not len(steps):
        return None
    (trace,) = recording.devices
    step = np.searchsorted(steps.boundaries, lifetimes.start, side="right") - 1
    inside = (step >= 0) & (step < len(steps) - 1)
    ends = np.append(steps.boundaries[1:], lifetimes.event_count)[np.clip(step, 0, len(steps))]
    late = (
        (categories.number == CATEGORIES.index("gradients"))
        & inside
        & (lifetimes.end > ends)
        & (lifetimes.completed < lifetimes.event_count)
    )
    if not late.any():
        return None
    place = np.arange(trace.event_count, dtype=np.float64)
    place[lifetimes.end[late]] = ends[late] - 0.5
    place[lifetimes.completed[late]] = ends[late] - 0.5
    events = trace.load()
    order = np.argsort(place, kind="stable")
    return (
        requests_alone(recording, events, "requests alone"),
        requests_alone(recording, events[order], "gradients freed earlier"),
    )
