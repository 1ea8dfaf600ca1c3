"""Guesses what each block is used for. It needs lifetimes, sizes and steps, but no call stacks.

- A block that exists before the first step and lives through the last is a parameter.
- A gradient is as large as a parameter, and all gradients of a step are live together.
- Optimizer state is allocated in the first step, stays, and is as large as a parameter.
- The part of a step before its first gradient has a peak of memory. The step's blocks that are live
  at that peak are activations.
- If a program trains but a step has no gradient, the step was cut off in its forward pass, by a
  failed request or the end of the history. The activations of such a step are
  the step's blocks that are live at its peak.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.analysis.category_names import NUMBER, WORKSPACE_SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps


def steps_crossed(lifetimes: Lifetimes, steps: Steps) -> NDArray[np.int64]:
    """Returns the number of step boundaries during each block's life. int64."""
    if not len(steps):
        return np.zeros(len(lifetimes), dtype=np.int64)
    before = np.searchsorted(steps.boundaries, lifetimes.start, side="right")
    return np.searchsorted(steps.boundaries, lifetimes.end, side="left") - before


def categories_by_lifetimes(lifetimes: Lifetimes, steps: Steps) -> NDArray[np.uint8]:
    """Returns an index into `CATEGORIES` for each block of a history with steps. uint8."""
    start, end = lifetimes.start, lifetimes.end
    bounds = steps.boundaries
    crossed = steps_crossed(lifetimes, steps)
    result = np.full(len(lifetimes), NUMBER["other"], dtype=np.uint8)
    # The last boundary is a guess, and a program may free its memory soon after the last step. So
    # a parameter only has to live to the middle of the last step.
    stays = (end >= (bounds[-2] + bounds[-1]) // 2) & (crossed > 1)
    stays |= (end >= lifetimes.event_count) & (crossed > 0)
    parameters = stays & (start < bounds[0])
    result[parameters] = NUMBER["parameters"]
    parameter_sizes = Counter(lifetimes.size[parameters].tolist())
    as_parameter = np.isin(lifetimes.size, list(parameter_sizes))
    result[stays & ~parameters & as_parameter & (start < bounds[1])] = NUMBER["optimizer_state"]

    passing = np.flatnonzero((crossed <= 1) & (start >= bounds[0]) & ~stays)
    firsts = np.searchsorted(start[passing], bounds)
    level = lifetimes.level()
    of_steps = [passing[first:last] for first, last in itertools.pairwise(firsts)]
    made_of_steps = [
        _together(lifetimes, blocks[as_parameter[blocks]], parameter_sizes) for blocks in of_steps
    ]
    trains = any(len(gradients) for gradients in made_of_steps)
    for blocks, gradients, (began, ends) in zip(
        of_steps, made_of_steps, itertools.pairwise(bounds.tolist()), strict=True
    ):
        result[blocks] = NUMBER["temporaries"]
        if not trains:
            continue
        made = ends - 1
        if len(gradients):
            # The forward pass ends where the gradients begin. But a small block of the forward pass
            # may look like a gradient. So the forward pass counts as ended only once the gradients
            # so far have a sixteenth of the bytes of all gradients.
            sizes = np.cumsum(lifetimes.size[gradients])
            made = int(start[gradients[np.searchsorted(sizes, sizes[-1] // 16)]])
        turn = began + int(np.argmax(level[began : made + 1]))
        is_activation = (start[blocks] <= turn) & (end[blocks] > turn)
        result[blocks[is_activation]] = NUMBER["activations"]
        result[gradients] = NUMBER["gradients"]
    _name_the_unseen(result, lifetimes, parameters)
    return result


def _together(
    lifetimes: Lifetimes, blocks: NDArray[np.int64], sizes: Counter[int]
) -> NDArray[np.int64]:
    """Chooses the gradients among a step's blocks that are as large as parameters.

    All gradients are live at the moment at which the sizes of the live blocks best match the sizes
    of the parameters.
    """
    if len(blocks) == 0:
        return blocks
    events = np.concatenate([lifetimes.start[blocks], lifetimes.end[blocks]])
    order = np.argsort(events, kind="stable")
    live: Counter[int] = Counter()
    matched = best = 0
    moment = -1
    all_sizes = lifetimes.size[blocks].tolist()
    for one in order.tolist():
        size = all_sizes[one % len(blocks)]
        if one < len(blocks):
            live[size] += 1
            matched += size if live[size] <= sizes[size] else 0
        else:
            matched -= size if live[size] <= sizes[size] else 0
            live[size] -= 1
        if matched > best:
            best, moment = matched, int(events[one])
    if best * 2 < sum(size * count for size, count in sizes.items()):
        return blocks[:0]  # no backward pass
    found = blocks[(lifetimes.start[blocks] <= moment) & (lifetimes.end[blocks] > moment)]
    left = Counter(sizes)
    chosen = []
    # Gradients live longer than activations and temporaries of the same size. So take the blocks
    # that are freed last.
    for block in found[np.argsort(-lifetimes.end[found], kind="stable")].tolist():
        size = int(lifetimes.size[block])
        if left[size] > 0:
            left[size] -= 1
            chosen.append(block)
    return np.sort(np.array(chosen, dtype=np.int64))


def _name_the_unseen(
    result: NDArray[np.uint8],
    lifetimes: Lifetimes,
    parameters: NDArray[np.bool_],
) -> None:
    """Sets the categories "workspaces" and "other".

    A block that is never freed and has the size of a workspace is taken for one. The use of a block
    that is older than the recording is unknown, so the block is "other".
    """
    kept = (lifetimes.end >= lifetimes.event_count) & ~parameters & (lifetimes.start >= 0)
    result[kept & np.isin(lifetimes.size, WORKSPACE_SIZES)] = NUMBER["workspaces"]
    result[lifetimes.start < 0] = NUMBER["other"]
