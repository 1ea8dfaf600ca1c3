"""Finds the steps of a program from the rhythm of its allocations.

A program repeats its requests in every step, so some kind of block is allocated exactly once per
step. Blocks are grouped into kinds in three ways: by size, by lifetime and by call stack. The
allocations of each kind are one proposal for where steps begin. A proposal is judged by three
properties of steps:

- The steps are alike. They are compared by the lifetimes of their blocks. A lifetime is counted in
  allocations, because this count stays the same if sequence lengths and batches vary.
- The boundaries are evenly spaced, and cover the history.
- Little memory is live at the boundaries, compared with the rest of the step.

Two proposals may be rated about equally although one has about twice as many steps, or more. The
proposal with more steps is then taken, because the other proposal counts several steps as one. In a
long history only the middle is searched. The kind of block that begins the steps in the middle then
gives the boundaries in the rest of the history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from plimsoll.recordings.analysis.stretches import Stretches, WholeStretch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.stretches import Stretch
    from plimsoll.recordings.recording import Mark

MOST_SEARCHED = 1 << 22
"""The most events, in the middle of a history, that are searched for steps."""
_LEAST_STEPS = 3
_LEAST_CONFIDENCE = 0.5
_AS_GOOD = 0.08  # a smaller difference in confidence has no meaning
_FINER = 1.8
# The next three constants limit the search time. The first limits the kinds of blocks that are
# examined for each value of `_Kind.by`. The second limits the step counts that are tried. The third
# limits the proposals that are tried for one step count.
_MOST_PROMISING = 1000
_MOST_COUNTS = 40
_MOST_OF_A_COUNT = 3
_MOST_COMPARED = 512  # the most steps that are compared with each other


@dataclass(frozen=True)
class Steps:
    """The boundaries of a program's steps.

    Attributes:
        boundaries: The events at which steps begin, and the end of the last step. Step `i` has the
            events from `boundaries[i]` to `boundaries[i + 1] - 1`. Empty without steps.
        source: "marks" if the program marked them, "rhythm" if they were detected.
        confidence: A rating of detected steps from 0 to 1. It is high if the steps are alike and
            evenly long, and begin when little memory is live. 1 for marks.
    """

    boundaries: NDArray[np.int64]
    source: Literal["marks", "rhythm"]
    confidence: float

    def __len__(self) -> int:
        return max(0, len(self.boundaries) - 1)


NO_STEPS = Steps(np.zeros(0, dtype=np.int64), "rhythm", 0.0)
"""The value for a history without steps, and for one whose steps are ignored."""


def find_steps(
    blocks: Lifetimes | Stretches, marks: Sequence[Mark] = (), *, device: int = 0
) -> Steps:
    """Finds the steps of one device's history.

    Args:
        blocks: The device's blocks.
        marks: The recording's marks. A mark named "step" ends a step. If the device has any mark
            with this name, the marks give the steps. Otherwise the rhythm of `blocks` gives them.
        device: The device's number. Marks of other devices are ignored.
    """
    ends = sorted(
        {mark.event for mark in marks if mark.name == "step" and mark.device in (None, device)}
    )
    if ends:
        inside = [min(max(end, 0), blocks.event_count) for end in ends]
        return Steps(np.unique(np.array([0, *inside], dtype=np.int64)), "marks", 1.0)
    return _find_rhythm(blocks if isinstance(blocks, Stretches) else WholeStretch(blocks))


def find_rhythm(blocks: Lifetimes, first: int, last: int) -> Steps:
    """Finds the iterations of a loop in a part of a history.

    Args:
        blocks: All blocks of the device.
        first: The part's first event.
        last: The event after the part.
    """
    inside = blocks[(blocks.start >= first) & (blocks.start < last)]
    count = last - first
    ends = {name: np.minimum(getattr(inside, name) - first, count) for name in ("end", "completed")}
    part = replace(inside, event_count=count, start=inside.start - first, **ends)
    found = _find_rhythm(WholeStretch(part))
    return replace(found, boundaries=found.boundaries + first)


@dataclass(frozen=True)
class _Kind:
    """A kind of block: blocks with equal values in some columns.

    Attributes:
        by: The columns in which all blocks of the kind have equal values. The attributes below
            are the values of one block. Other blocks of the kind may have other values in columns
            that `by` does not name.
        life: The block's lifetime, counted in allocations; -1 if the block is never freed.
        size: The block's requested bytes.
        stack: The number of the block's call stack.
    """

    by: tuple[Literal["life", "size", "stack"], ...]
    life: int
    size: int
    stack: int

    def among(self, stretch: Stretch) -> NDArray[np.bool_]:
        """Returns, for each block that a stretch allocates, whether it is of this kind."""
        columns = {"life": stretch.lives, "size": stretch.began.size, "stack": stretch.began.stack}
        is_of: NDArray[np.bool_] = np.ones(len(stretch.began), dtype=bool)
        for name in self.by:
            is_of &= columns[name] == getattr(self, name)
        return is_of


def _find_rhythm(history: Stretches) -> Steps:
    if not history.event_count:
        return NO_STEPS
    spare = max(history.event_count - MOST_SEARCHED, 0)
    middle = history.window(spare // 2, spare // 2 + MOST_SEARCHED)
    if len(middle.began) < 2 * _LEAST_STEPS:
        return NO_STEPS
    lives, life = np.unique(middle.lives, return_inverse=True)
    start = middle.began.start - middle.first
    judged = [
        (_judge(places, life, len(lives), start, middle.level), places, kind)
        for places, kind in _proposals(middle, life)
    ]
    best = max(judged, key=lambda one: one[0], default=None)
    if best is None or best[0] < _LEAST_CONFIDENCE:
        return NO_STEPS
    finer = [
        one
        for one in judged
        if one[0] >= best[0] - _AS_GOOD and len(one[1]) > _FINER * len(best[1])
    ]
    confidence, _, kind = max([best, *finer], key=lambda one: (len(one[1]), one[0]))
    stretches = [middle] if not spare else history
    begins = np.concatenate([one.began.start[kind.among(one)] for one in stretches])
    # The end of the last step is unknown. Guess that the last step has the median length.
    end = min(int(begins[-1] + np.median(np.diff(begins))), history.event_count)
    return Steps(np.append(begins, end), "rhythm", round(confidence, 3))


def _proposals(
    middle: Stretch, life: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], _Kind]]:
    """Yields the most promising proposals for each possible number of steps.

    A proposal is the indices of the blocks whose allocations would begin the steps, and the kind of
    these blocks.
    """
    began = middle.began
    size = np.unique(began.size, return_inverse=True)[1]
    both = np.unique(size * (int(life.max()) + 1) + life, return_inverse=True)[1]
    kinds: list[tuple[tuple[Literal["life", "size", "stack"], ...], NDArray[np.int64]]]
    kinds = [(("life",), life), (("size",), size), (("size", "life"), both)]
    if began.stack.any():
        kinds.append((("stack",), np.unique(began.stack, return_inverse=True)[1]))
    level = middle.level
    busy = level[np.maximum(began.start - middle.first - 1, 0)] / max(int(level.max()), 1)
    by_times: dict[int, list[tuple[float, NDArray[np.int64], _Kind]]] = {}
    for by, kind in kinds:
        order, first, times = _grouped(kind)
        unevenness, cover = _spacing(order, first, times)
        calm = 1 - np.add.reduceat(busy[order], first) / times
        promise = cover * calm / (1 + unevenness**2)
        likely = (times >= _LEAST_STEPS) & (times <= len(kind) // 2) & (cover > _LEAST_CONFIDENCE)
        chosen = np.flatnonzero(likely)
        for one in chosen[np.argsort(-promise[chosen], kind="stable")][:_MOST_PROMISING]:
            places = order[first[one] : first[one] + times[one]]
            here = int(places[0])
            told = (int(middle.lives[here]), int(began.size[here]), int(began.stack[here]))
            found = by_times.setdefault(int(times[one]), [])
            found.append((float(promise[one]), places, _Kind(by, *told)))
    for group in by_times.values():
        group.sort(key=lambda proposal: -proposal[0])
    ranked = sorted(by_times.values(), key=lambda group: -group[0][0])
    for group in ranked[:_MOST_COUNTS]:
        for _, places, kind_of in group[:_MOST_OF_A_COUNT]:
            yield places, kind_of


def _grouped(
    kind: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sorts the indices of blocks by the blocks' kind.

    Returns the sorted indices. For each kind, also returns the position of its first index among
    the sorted indices, and the number of its blocks.
    """
    times = np.bincount(kind)
    return np.argsort(kind, kind="stable"), np.cumsum(times) - times, times


def _spacing(
    order: NDArray[np.int64], first: NDArray[np.int64], times: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measures for each kind of block how its allocations are spread over the history.

    Returns the unevenness of the distances between allocations of a kind (deviation over mean), and
    the share of the history that these allocations cover.
    """
    gaps = np.diff(order, append=0).astype(np.float64)
    gaps[first + times - 1] = 0  # this gap leads to another kind
    number = np.maximum(times - 1, 1)
    mean = np.add.reduceat(gaps, first) / number
    square = np.add.reduceat(gaps**2, first) / number
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return deviation / np.maximum(mean, 1), np.minimum(mean * times / len(order), 1)


def _judge(
    places: NDArray[np.int64],
    life: NDArray[np.int64],
    kinds: int,
    start: NDArray[np.int64],
    level: NDArray[np.int64],
) -> float:
    """Returns a rating of the proposed boundaries: 0 is the worst, 1 the best."""
    gaps = np.diff(places)
    cover = min(1.0, float((places[-1] - places[0] + np.median(gaps)) / len(life)))
    unevenness = float(gaps.std() / gaps.mean())
    skip = max(0, (len(gaps) - _MOST_COMPARED) // 2)
    places = places[skip : skip + _MOST_COMPARED + 1]
    gaps = np.diff(places)
    part = life[places[0] : places[-1]]
    step = np.repeat(np.arange(len(gaps)), gaps)
    table = np.bincount(part * len(gaps) + step, minlength=kinds * len(gaps))
    table = table.reshape(kinds, len(gaps))
    usual = np.median(table, axis=1, keepdims=True)
    alike = float(np.minimum(table, usual).sum() / len(part))
    events = start[places]
    least = np.minimum.reduceat(level, events)[:-1]
    most = np.maximum.reduceat(level, events)[:-1]
    above = (level[np.maximum(events[:-1] - 1, 0)] - least) / np.maximum(most - least, 1)
    calm = 1 - float(np.clip(above, 0, 1).mean())
    return alike * cover * calm / (1 + unevenness**2)
