"""Finds loops that make no optimizer step, such as a validation between two steps of training.

Such a loop lies inside one marked step. This step makes many times as many forward requests as
other steps. plimsoll finds the iterations of the loop, called passes, by the rhythm of the loop's
allocations. The loop may keep memory. Live memory then rises until the last pass, after which the
program frees all kept memory at once. So plimsoll searches the step only up to the event at which
live memory is highest above its earlier minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.analysis.evidence import Place
from plimsoll.recordings.analysis.steps import NO_STEPS, Steps, find_rhythm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.causes.cause import Facts

_FORWARD = (Place.PROGRAM, Place.FORWARD)
_MUCH_LONGER = 3
"""plimsoll searches a step for a loop if the step has this many times the median step's requests.

Only requests outside backward passes and optimizers count. Frees do not count, because a validation
that keeps its graphs frees nothing.
"""
_MOST_SEARCHED = 1 << 20
"""The most events of a step that are searched for a loop, counted from the step's beginning."""
_MOST_LOOPS = 100
"""The most steps that are searched for a loop. If there are more, the last ones are searched."""


def inner_loop(facts: Facts) -> Steps:
    """Returns the passes of a loop inside the marked step with the peak; empty without a loop."""
    steps = [(first, last) for first, last in _long_steps(facts) if first <= facts.event < last]
    return _passes(facts, steps)


def inner_loops(facts: Facts) -> Steps:
    """Returns the passes of the loops inside all marked steps; empty without such loops.

    The time between two loops counts as a part of the last pass before it.
    """
    return _passes(facts, _long_steps(facts)[-_MOST_LOOPS:])


def _long_steps(facts: Facts) -> list[tuple[int, int]]:
    """Returns the marked steps that may contain a loop.

    Each step is a pair: its first event, and the first event after it. The time after the last mark
    counts as a step too. If no marked step precedes this time, there is nothing to compare it with,
    and the result is empty.
    """
    ends = facts.passes.boundaries
    if facts.passes.source != "marks" or len(ends) <= 1:
        return []
    edges = np.append(ends, facts.blocks.event_count)
    is_forward = np.isin(facts.place, _FORWARD)
    # Without call stacks, all requests count.
    starts = np.sort(facts.blocks.start[is_forward] if is_forward.any() else facts.blocks.start)
    requests: NDArray[np.int64] = np.diff(np.searchsorted(starts, edges))
    is_long = requests > _MUCH_LONGER * float(np.median(requests[:-1]))
    return [(int(edges[one]), int(edges[one + 1])) for one in np.flatnonzero(is_long)]


def _passes(facts: Facts, steps: list[tuple[int, int]]) -> Steps:
    """Returns the passes of the loops inside `steps`, which come from `_long_steps`."""
    if not steps:
        return NO_STEPS
    level = facts.blocks.level()
    found = []
    for first, last in steps:
        rise = level[first:last] - np.minimum.accumulate(level[first:last])
        risen = first + int(np.argmax(rise)) + 1
        found.append(find_rhythm(facts.blocks, first, min(risen, first + _MOST_SEARCHED)))
    return Steps(np.unique(np.concatenate([each.boundaries for each in found])), "rhythm", 1.0)
