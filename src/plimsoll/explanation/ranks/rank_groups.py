"""Groups ranks by behaviour; differences that come from sharding do not matter.

A passage is a short run of consecutive allocations (see `behaviour`). Ranks with nearly the same
passages form a group. The tolerance is the smallest of `_LEVELS` at which most ranks are in a
group. A group is then split if its ranks make different numbers of allocations in a step, or keep
very different amounts of memory over all steps, as a pipeline stage with more layers does.

A handful of ranks may form a group only if they are evenly spaced, as the ranks of a pipeline stage
are. Otherwise each of these ranks joins the most similar group, and `outliers` compares the rank
with that group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.explanation.ranks.behaviour import Passages
    from plimsoll.explanation.ranks.rank_summary import RankSummary

_MOST_COMPARED = 1 << 15  # the most passages that are compared
_LEVELS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""The tolerances to try: each is the share of passages that may differ within a group."""
_MOST_BESIDE = 0.75  # a tolerance is large enough if groups hold this share of all ranks
# A group with a smaller share of all ranks than this must have evenly spaced ranks.
_LEAST_SHARE = 0.05
# The relative gaps that split a group: in the allocations per step, and in the kept memory.
_OTHER_COUNT, _OTHER_MEMORY = 0.02, 0.2


@dataclass(frozen=True)
class RankGroup:
    """Ranks with the same behaviour.

    Attributes:
        ranks: The numbers of the ranks, in order.
        representative: The most typical rank: its peak of allocated memory and its number of events
            are the closest to the group's medians.
    """

    ranks: list[int]
    representative: int


def group_ranks(summaries: Sequence[RankSummary]) -> list[RankGroup]:
    """Groups ranks by their behaviour, the largest group first.

    Args:
        summaries: One summary for each rank.
    """
    ordered = sorted(summaries, key=_rank)
    groups = [
        part
        for alike in _by_passages(ordered)
        for even in _by_value(alike, lambda one: one.allocations_per_step, _OTHER_COUNT)
        for part in _by_value(even, lambda one: one.kept_bytes, _OTHER_MEMORY)
    ]
    found = [RankGroup([*map(_rank, group)], _rank(_middle_one(group))) for group in groups]
    return sorted(found, key=lambda group: (-len(group.ranks), group.ranks))


def is_even(ranks: Sequence[int]) -> bool:
    """Returns whether sorted ranks are evenly spaced, as those of a pipeline stage are."""
    return len(ranks) > 2 and len(set(np.diff(ranks).tolist())) == 1


def is_substantial(ranks: Sequence[int], of: int) -> bool:
    """Returns whether ranks may form a group.

    They may if they are evenly spaced, or if there are enough of them. `of` is the number of ranks
    from which they were taken.
    """
    return len(ranks) >= max(2, _LEAST_SHARE * of) or is_even(ranks)


class Shared:
    """Tells which ranks have which passages.

    Attributes:
        hashes: The hashes of the compared passages, sorted.
        has: For each rank, a mask of the compared passages that it has.
    """

    def __init__(self, passages: Sequence[Passages]) -> None:
        limit = min(one.complete_below for one in passages)
        known = np.unique(np.concatenate([one.hashes for one in passages]))
        if limit < 1 << 64:
            known = known[known < np.uint64(limit)]
        self.hashes: NDArray[np.uint64] = known[:_MOST_COMPARED]
        self.has = np.zeros((len(passages), len(self.hashes)), dtype=bool)
        for row, one in zip(self.has, passages, strict=True):
            row[:] = np.isin(self.hashes, one.hashes, assume_unique=True)

    def missing(self) -> NDArray[np.float64]:
        """Returns a matrix. Element [i, j] is the share of rank i's passages that rank j lacks."""
        kinds, place = np.unique(np.packbits(self.has, axis=1), axis=0, return_inverse=True)
        rows = np.unpackbits(kinds, axis=1, count=len(self.hashes)).astype(np.float32)
        common = (rows @ rows.T).astype(np.float64)
        own = np.maximum(np.diag(common), 1)
        missing = 1 - common / own[:, None]
        missing[np.diag(common) == 0] = 0  # no rank lacks passages of a rank that has none
        place = place.reshape(-1)
        return np.asarray(missing[np.ix_(place, place)])


def passages_of(summaries: Sequence[RankSummary]) -> list[list[Passages]]:
    """Returns one or two lists, each with one `Passages` for each rank.

    If all ranks have call stacks, the first list has the passages whose words are source lines. The
    last list has the passages whose words are lifetimes. `behaviour` explains these words.
    """
    lines = [one.behaviour.lines for one in summaries]
    told = [one for one in lines if one is not None]
    lives = [one.behaviour.lives for one in summaries]
    return [told, lives] if len(told) == len(lines) else [lives]


def _rank(summary: RankSummary) -> int:
    assert summary.rank is not None  # `read_job` leaves out summaries without a rank
    return summary.rank


def _by_passages(summaries: list[RankSummary]) -> list[list[RankSummary]]:
    missing = Shared(passages_of(summaries)[0]).missing()
    distance = np.maximum(missing, missing.T)
    total = len(summaries)
    chosen: list[list[int]] = []
    for level in _LEVELS:
        parts = _linked(distance <= level)
        chosen = [
            part for part in parts if is_substantial([_rank(summaries[i]) for i in part], total)
        ]
        if sum(map(len, chosen)) >= _MOST_BESIDE * total:
            break
    else:
        parts = _linked(distance <= _LEVELS[0])
        return [[summaries[i] for i in part] for part in parts]
    inside = {i for part in chosen for i in part}
    homes = {id(part): [*part] for part in chosen}
    for i in sorted(set(range(total)) - inside):
        # If rank i's recording is truncated, `missing[j, i]` is large even for similar ranks, but
        # `missing[i, j]` is small. So the smaller of these two values decides, and the larger one
        # only in a tie.
        nearest = min(
            chosen,
            key=lambda part: min((min(missing[i, j], missing[j, i]), distance[i, j]) for j in part),
        )
        homes[id(nearest)].append(i)
    return [[summaries[i] for i in sorted(part)] for part in homes.values()]


def _linked(near: NDArray[np.bool_]) -> list[list[int]]:
    """Returns the connected components of the graph in which near ranks are neighbours."""
    left = np.ones(len(near), dtype=bool)
    parts = []
    for first in range(len(near)):
        if not left[first]:
            continue
        part = np.zeros(len(near), dtype=bool)
        new = np.zeros(len(near), dtype=bool)
        new[first] = True
        while new.any():
            part |= new
            new = near[new].any(axis=0) & ~part
        left &= ~part
        parts.append(np.flatnonzero(part).tolist())
    return parts


def _by_value(
    group: list[RankSummary], value_of: Callable[[RankSummary], float | None], gap: float
) -> list[list[RankSummary]]:
    """Splits a group where its sorted values have a relative gap larger than `gap`.

    A rank without a value joins the largest part.
    """
    known = [one for one in group if value_of(one)]
    if len(known) < 4:
        return [group]
    known.sort(key=lambda one: value_of(one) or 0.0)
    logs = np.log([float(value_of(one) or 1) for one in known])
    cuts = np.flatnonzero(np.diff(logs) > math.log1p(gap)) + 1
    parts = [part.tolist() for part in np.split(np.arange(len(known)), cuts)]
    good = [
        part for part in parts if is_substantial(sorted(_rank(known[i]) for i in part), len(known))
    ]
    if len(good) < 2:
        return [group]
    homes = [[known[i] for i in part] for part in good]
    centres = [float(np.median(logs[part])) for part in good]
    for part in parts:
        if part not in good:
            nearest = min(range(len(good)), key=lambda one: abs(centres[one] - logs[part].mean()))
            homes[nearest] += [known[i] for i in part]
    largest = max(homes, key=len)
    largest += [one for one in group if not value_of(one)]
    return [sorted(home, key=_rank) for home in homes]


def _middle_one(group: list[RankSummary]) -> RankSummary:
    peaks = np.array([one.peak_allocated_bytes for one in group], dtype=np.float64)
    events = np.array([one.events for one in group], dtype=np.float64)
    far = np.abs(peaks / np.median(peaks) - 1) + np.abs(events / np.median(events) - 1)
    return group[int(np.argmin(np.round(far, 3)))]
