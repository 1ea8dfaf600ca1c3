"""What each block is for, as far as its call stack or its lifetime tell.

With stacks, the innermost frame that means something decides: PyTorch's optimizers, `Module.to` and
initialisation, `backward`, the call of a module. Autograd's own threads have no Python frames, so
that a block without any, in a recording that has stacks, is of the backward pass. Without stacks,
lifetimes in relation to the steps have to do:

- what is there before the first step and lives through the last is a parameter;
- a gradient is as large as a parameter, and all gradients of a step are live together;
- what a step leaves behind is optimizer state if it is as large as a parameter;
- an activation is there when the most is live before the first gradient of its step is made. Where
  a program trains, and a step has none, its forward pass was cut off: by a request that failed, or
  by the end of the history. Then it is there when the most of the step is live.

What neither tells is "unknown".
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.analysis.lifetimes import Lifetimes
    from plimsoll.analysis.steps import Steps
    from plimsoll.recordings import Frame

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "temporaries",
    "workspaces",
    "inputs",
    "rounding",
    "unknown",
)
"""What memory is for.

`temporaries` die within the pass that made them. `workspaces` are kept by libraries such as cuBLAS;
those of PyTorch 2.15 die with the product, and where only stacks tell they are temporaries.
`rounding` is what blocks have beyond what was asked, and never a block's own category.
"""

_NUMBER = {name: number for number, name in enumerate(CATEGORIES)}
# What PyTorch allocates for cuBLAS and cuBLASLt, by card and version, and keeps.
_WORKSPACE_SIZES = (1 << 20, 8_519_680, 32 << 20)

Source = Literal["stacks", "lifetimes", "nothing"]


@dataclass(frozen=True)
class Categories:
    """What each block of `Lifetimes` is for.

    Attributes:
        number: For each block, an index into `CATEGORIES`. uint8.
        source: What told: "stacks", "lifetimes" in relation to the steps, or "nothing".
    """

    number: NDArray[np.uint8]
    source: Source


def find_categories(
    lifetimes: Lifetimes,
    steps: Steps,
    frames: Callable[[int], list[Frame]],
    failures: Sequence[int] = (),
) -> Categories:
    """Tell what each block is for.

    Args:
        lifetimes: The blocks.
        steps: The steps of the program.
        frames: The frames of a stack by its number, such as `DeviceTrace.frames`.
        failures: The events where requests failed, in order.
    """
    if lifetimes.stack.any():
        return Categories(_by_stacks(lifetimes, steps, frames, failures), "stacks")
    if len(steps):
        return Categories(_by_lifetimes(lifetimes, steps), "lifetimes")
    return Categories(np.full(len(lifetimes), _NUMBER["unknown"], dtype=np.uint8), "nothing")


def _crossed(lifetimes: Lifetimes, steps: Steps) -> NDArray[np.int64]:
    """How many boundaries of steps each block lives across."""
    if not len(steps):
        return np.zeros(len(lifetimes), dtype=np.int64)
    before = np.searchsorted(steps.boundaries, lifetimes.start, side="right")
    return np.searchsorted(steps.boundaries, lifetimes.end, side="left") - before


# --- by stacks -----------------------------------------------------------------------------------

_BUILD, _OPTIMIZER, _BACKWARD, _FORWARD, _PROGRAM = range(5)


def _place(frames: Sequence[Frame]) -> int:
    """In which part of a program a stack is."""
    for filename, _, function in frames:
        path = filename.replace("\\", "/").rpartition("/torch/")[2]
        if path == filename:
            continue
        if path.startswith("optim/"):
            return _OPTIMIZER
        if path == "nn/init.py" or path == "nn/parameter.py":
            return _BUILD
        if path.startswith("nn/modules/"):
            if function in ("_apply", "convert", "__init__", "reset_parameters"):
                return _BUILD
            if function == "_call_impl":
                return _FORWARD
        if path.startswith("autograd/") and function in (
            "backward",
            "grad",
            "_engine_run_backward",
        ):
            return _BACKWARD
    return _PROGRAM if frames else _BACKWARD


def _by_stacks(
    lifetimes: Lifetimes,
    steps: Steps,
    frames: Callable[[int], list[Frame]],
    failures: Sequence[int],
) -> NDArray[np.uint8]:
    numbers, place_of = np.unique(lifetimes.stack, return_inverse=True)
    place = np.array([_place(frames(int(number))) for number in numbers], dtype=np.uint8)[place_of]
    start, end = lifetimes.start, lifetimes.end
    crossed = _crossed(lifetimes, steps)
    result = np.full(len(lifetimes), _NUMBER["temporaries"], dtype=np.uint8)

    def name(category: str, which: NDArray[np.bool_]) -> None:
        result[which] = _NUMBER[category]

    name("parameters", place == _BUILD)
    stays = (crossed > 0) | (end >= lifetimes.event_count)
    name("optimizer_state", (place == _OPTIMIZER) & stays)

    # What the forward pass makes and the backward pass still finds, or would have found if no
    # request had failed.
    forward = (place == _FORWARD) | (place == _PROGRAM)
    backward_starts = start[place == _BACKWARD]
    reached = np.union1d(backward_starts, np.array(failures, dtype=np.int64))
    survives = end > _next(reached, start, lifetimes.event_count)
    # A history that ends in a forward pass ends with its activations.
    last_backward = int(backward_starts.max(initial=-1))
    open_end = (end >= lifetimes.event_count) & (start > last_backward)
    name("activations", (forward & survives) | ((place == _FORWARD) & open_end))
    name("unknown", (place == _PROGRAM) & (end >= lifetimes.event_count))
    # A program prepares its inputs before it calls the first module of a step.
    last_call = _last(start[place == _FORWARD], start)
    last_other = _last(start[(place != _FORWARD) & (place != _PROGRAM)], start)
    name("inputs", (place == _PROGRAM) & (last_other >= last_call) & (survives | (crossed > 0)))
    name("unknown", forward & (crossed > 1))

    # A gradient outlives the backward pass that made it.
    after = np.union1d(start[(place == _OPTIMIZER) | (place == _PROGRAM)], steps.boundaries)
    outlives = end > _next(after, start, lifetimes.event_count - 1)
    sizes = np.unique(lifetimes.size[place == _BUILD])
    fits = np.isin(lifetimes.size, sizes) if len(sizes) else np.ones(len(lifetimes), dtype=bool)
    name("gradients", (place == _BACKWARD) & outlives & fits)
    _name_the_unseen(result, lifetimes, crossed, place != _BUILD)
    return result


def _next(events: NDArray[np.int64], after: NDArray[np.int64], otherwise: int) -> NDArray[np.int64]:
    """For each of `after`, the first of the sorted `events` behind it."""
    place = np.searchsorted(events, after, side="right")
    return np.append(events, otherwise)[place]


def _last(events: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of `before`, the last of the sorted `events` ahead of it; -1 for none."""
    return np.append(events, -1)[np.searchsorted(events, before) - 1]


def _name_the_unseen(
    result: NDArray[np.uint8],
    lifetimes: Lifetimes,
    crossed: NDArray[np.int64],
    may_be: NDArray[np.bool_],
) -> None:
    """Workspaces, which libraries keep, and what was there before the recording began."""
    kept = (lifetimes.end >= lifetimes.event_count) & may_be
    is_workspace = kept & np.isin(lifetimes.size, _WORKSPACE_SIZES) & (lifetimes.start >= 0)
    result[is_workspace & ((crossed > 0) | (lifetimes.stack == 0))] = _NUMBER["workspaces"]
    result[(lifetimes.start < 0) & (lifetimes.stack == 0)] = _NUMBER["unknown"]


# --- by lifetimes --------------------------------------------------------------------------------


def _by_lifetimes(lifetimes: Lifetimes, steps: Steps) -> NDArray[np.uint8]:
    start, end = lifetimes.start, lifetimes.end
    bounds = steps.boundaries
    crossed = _crossed(lifetimes, steps)
    result = np.full(len(lifetimes), _NUMBER["unknown"], dtype=np.uint8)
    # The end of the last step is a guess, and what is live ends with the program soon after.
    stays = (end >= (bounds[-2] + bounds[-1]) // 2) & (crossed > 1)
    stays |= (end >= lifetimes.event_count) & (crossed > 0)
    parameters = stays & (start < bounds[0])
    result[parameters] = _NUMBER["parameters"]
    parameter_sizes = Counter(lifetimes.size[parameters].tolist())
    as_parameter = np.isin(lifetimes.size, list(parameter_sizes))
    result[stays & ~parameters & as_parameter & (start < bounds[1])] = _NUMBER["optimizer_state"]

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
        result[blocks] = _NUMBER["temporaries"]
        if not trains:
            continue
        made = ends - 1
        if len(gradients):
            # Not the very first: a small block that looks like a gradient may be older.
            sizes = np.cumsum(lifetimes.size[gradients])
            made = int(start[gradients[np.searchsorted(sizes, sizes[-1] // 16)]])
        turn = began + int(np.argmax(level[began : made + 1]))
        is_activation = (start[blocks] <= turn) & (end[blocks] > turn)
        result[blocks[is_activation]] = _NUMBER["activations"]
        result[gradients] = _NUMBER["gradients"]
    _name_the_unseen(result, lifetimes, crossed, ~parameters)
    return result


def _together(
    lifetimes: Lifetimes, blocks: NDArray[np.int64], sizes: Counter[int]
) -> NDArray[np.int64]:
    """Those of `blocks` that are live when they are the most like a block for each of `sizes`."""
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
    # Activations and temporaries of a parameter's size are gone before.
    for block in found[np.argsort(-lifetimes.end[found], kind="stable")].tolist():
        size = int(lifetimes.size[block])
        if left[size] > 0:
            left[size] -= 1
            chosen.append(block)
    return np.sort(np.array(chosen, dtype=np.int64))
