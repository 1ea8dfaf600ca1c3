"""Finds ranks that differ from their group by more than chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from plimsoll.base.units import MiB
from plimsoll.explanation.ranks.behaviour import WORDS
from plimsoll.explanation.ranks.rank_groups import Shared, is_even, passages_of
from plimsoll.explanation.ranks.spread import beyond, deviation, middle, wide_deviation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from plimsoll.explanation.ranks.behaviour import Passages
    from plimsoll.explanation.ranks.growth import Kept
    from plimsoll.explanation.ranks.rank_groups import RankGroup
    from plimsoll.explanation.ranks.rank_summary import RankSummary

OutlierKind = Literal["out_of_memory", "leak", "fragmented", "full", "different"]

_KINDS: tuple[OutlierKind, ...] = ("out_of_memory", "leak", "fragmented", "full", "different")
# A "full" rank exceeds the group's median peak by this share. Uneven shards can cause a smaller
# excess.
_LEAST_MORE = 0.25
_LEAST_PASSING = (
    # A rank can also be "full" because a step allocates and frees more memory than on other ranks.
    # The excess over the group's median must exceed this share of the group's median peak. Uneven
    # shards hardly change this memory, so the share is smaller than `_LEAST_MORE`.
    0.08
)
# A "fragmented" rank has more unallocated reserved memory than its group's median. The difference
# is at least this share of the group's median reserved memory.
_LEAST_LOST = 0.05
_SEGMENT = 20 * MiB  # PyTorch's usual segment size: one segment more or less is chance
_LEAST_PASSAGES = WORDS // 2
_LEAST_KEEPING_STEPS, _LEAST_KEEPING_SHARE = 2, 0.5
_OTHER_STEPS = 0.2  # steps are alike if their numbers of allocations differ by less than this share
# A passage is a run of consecutive allocations (`behaviour`). It is rare if less than this share of
# the group's ranks has it.
_FEW_HAVE = 0.05
_WITNESSES = 3


@dataclass(frozen=True)
class Outlier:
    """A rank that stands out in its group.

    Attributes:
        rank: The rank.
        kind: How the rank differs:
            - "out_of_memory": a request of this rank failed. Either this rank was the first to
              fail, or less than half of the group's ranks failed.
            - "leak": a line keeps more memory after each step than in the other ranks.
            - "fragmented": more memory is reserved but not allocated than in the other ranks.
            - "full": the peak is higher than that of the other ranks.
            - "different": the order of allocations differs from that of all other ranks.
        line: The source line that causes the difference. Without call stacks, this may be
            "blocks of SIZE" instead. None if neither is known.
        bytes: The size of the failed request, the leak, or the excess over the median of the group;
            for "different", the bytes of the allocations whose order differs.
        event: The event of the failed request or of the first different allocation; else None.
    """

    rank: int
    kind: OutlierKind
    line: str | None
    bytes: int
    event: int | None = None


def find_outliers(summaries: Sequence[RankSummary], groups: Sequence[RankGroup]) -> list[Outlier]:
    """Returns the outliers, sorted by kind; out of memory is the first kind.

    If ranks ran out of memory, the list begins with the one that did so earliest.

    Args:
        summaries: One summary for each rank.
        groups: All these ranks, grouped by behaviour.
    """
    of_rank = {one.rank: one for one in summaries if one.rank is not None}
    teams = [[of_rank[rank] for rank in group.ranks] for group in groups]
    found = list(_out_of_memory(teams))
    explained = {one.rank for one in found}
    for team in teams:
        found += _leaking(team)
    leaking = {one.rank for one in found if one.kind == "leak"}
    explained |= leaking
    found += [one for one in _fragmented(teams) if one.rank not in explained]
    found += [one for one in _full(teams) if one.rank not in explained]
    explained |= {one.rank for one in found if one.kind == "fragmented"}
    found += [one for one in _different(teams) if one.rank not in explained]
    return sorted(found, key=lambda one: _KINDS.index(one.kind))


def first_to_fail(summaries: Sequence[RankSummary]) -> RankSummary | None:
    """Returns the rank whose request failed in the earliest step; the clock decides in a tie."""
    failed = [one for one in summaries if one.failure is not None]
    if not failed:
        return None
    knows_steps = all(one.failure and one.failure.step is not None for one in failed)

    def when(one: RankSummary) -> tuple[int, int, int]:
        assert one.failure is not None
        step = one.failure.step if knows_steps and one.failure.step is not None else 0
        return step, one.failure.time_us, _rank(one)

    return min(failed, key=when)


def _out_of_memory(teams: Sequence[Sequence[RankSummary]]) -> Iterator[Outlier]:
    """Yields the rank that ran out of memory first, then other ranks that ran out of memory.

    If at least half of the ranks in a group ran out of memory, that is usual in the group. Then
    the group's ranks are left out. But the very first rank of the job to run out of memory is
    always included.
    """
    first = first_to_fail([one for team in teams for one in team])
    named = [] if first is None else [first]
    for team in teams:
        failed = [one for one in team if one.failure is not None and one is not first]
        if 2 * (len(failed) + (first in team)) < len(team):
            named += failed
    for one in named:
        assert one.failure is not None
        failure = one.failure
        yield Outlier(_rank(one), "out_of_memory", failure.line, failure.asked_bytes, failure.event)


def _leaking(team: Sequence[RankSummary]) -> Iterator[Outlier]:
    """Yields ranks with a line that keeps more memory per step than it keeps on the other ranks."""
    for one in team:
        others = [other for other in team if other is not one]
        lines: dict[str, tuple[int, float]] = {}
        if others and _has_steps_of(others, one):
            for kept in one.kept:
                if _keeps(kept):
                    lines[kept.line] = (kept.bytes, kept.slope_bytes)
        for leak in one.leaks:
            lines.setdefault(leak.what, (leak.grown_bytes, leak.slope_bytes))
        more = {
            line: grown
            for line, (grown, slope) in lines.items()
            if _is_more(slope, [_slope(other, line) for other in others])
        }
        total = sum(slope for line, (_, slope) in lines.items() if line in more)
        if more and _is_more(total, [sum(_slopes(other)) for other in others]):
            line = max(more, key=more.__getitem__)
            yield Outlier(_rank(one), "leak", line, more[line])


def _is_more(value: float, others: Sequence[float]) -> bool:
    """Returns whether a slope is well above those of the other ranks."""
    if not others:
        return value > 0
    known = np.array(others)
    return bool(value > 2 * middle(known) + 6 * deviation(known))


def _slope(one: RankSummary, line: str) -> float:
    of_leaks = [leak.slope_bytes for leak in one.leaks if leak.what == line]
    of_kept = [kept.slope_bytes for kept in one.kept if kept.line == line and _keeps(kept)]
    return max([0.0, *of_leaks, *of_kept])


def _keeps(kept: Kept) -> bool:
    """Returns whether a line keeps memory in enough steps to call it a leak."""
    return kept.steps >= max(_LEAST_KEEPING_STEPS, _LEAST_KEEPING_SHARE * kept.of_steps)


def _has_steps_of(others: Sequence[RankSummary], one: RankSummary) -> bool:
    """Returns whether a rank makes about as many allocations in a step as the other ranks do."""
    known = [other.allocations_per_step for other in others if other.allocations_per_step]
    if not known or not one.allocations_per_step:
        return False
    return abs(one.allocations_per_step / float(np.median(known)) - 1) < _OTHER_STEPS


def _slopes(one: RankSummary) -> list[float]:
    lines = {leak.what for leak in one.leaks} | {kept.line for kept in one.kept}
    return [_slope(one, line) for line in lines]


def _fragmented(teams: Sequence[Sequence[RankSummary]]) -> Iterator[Outlier]:
    """Yields ranks with more reserved but unallocated memory than the other ranks of their group.

    With varying sequence lengths, even a healthy rank may have much more of such memory than most.
    So the spread is measured at the tails of the distribution (`wide_deviation`).
    """
    known = _values(teams, lambda one: one.lost_bytes, of=_reserved, spread=wide_deviation)
    for team, lost, elsewhere in known:
        reserved = middle(np.array([_reserved(one) for one in team], dtype=np.float64))
        least = max(_LEAST_LOST * reserved, float(_SEGMENT + 1))
        # If a rank allocates more than the others, it usually has more unused memory, too. The
        # unused memory is therefore divided by the rank's peak relative to the group's median peak.
        peaks = np.array([_peak(one) for one in team], dtype=np.float64)
        lost = lost / np.maximum(peaks / middle(peaks), 1)
        for place in np.flatnonzero(beyond(lost, least, elsewhere)).tolist():
            more = int(team[place].lost_bytes - middle(lost))
            line = team[place].lines[0][0] if team[place].lines else None
            yield Outlier(_rank(team[place]), "fragmented", line, more)


def _full(teams: Sequence[Sequence[RankSummary]]) -> Iterator[Outlier]:
    """Yields ranks that need more memory than their group.

    Either the whole peak is larger, or the part of it that a step allocates and frees.
    """
    for team, peaks, elsewhere in _values(teams, lambda one: one.peak_allocated_bytes, of=_peak):
        usual = middle(peaks)
        found = beyond(peaks, _LEAST_MORE * usual, elsewhere)
        kept = np.array([one.kept_bytes or 0 for one in team], dtype=np.float64)
        if kept.all():
            scale = np.maximum(kept / middle(kept), 1)
            passing = peaks - kept
            # If a rank keeps more memory than the others, its shards are usually larger. Such a
            # rank may rightly need more memory within a step, in the same ratio. Subtract this
            # excess.
            over = passing - (scale - 1) * middle(passing)
            found |= beyond(over, _LEAST_PASSING * usual, elsewhere) & (peaks > usual)
        for place in np.flatnonzero(found).tolist():
            others = [one for one in team if one is not team[place]]
            line = _largest_excess(team[place], others)
            yield Outlier(_rank(team[place]), "full", line, int(peaks[place] - usual))


def _different(teams: Sequence[Sequence[RankSummary]]) -> Iterator[Outlier]:
    """Yields ranks with passages that few other ranks of their group have."""
    found: dict[int, Outlier] = {}
    for team in teams:
        if len(team) < 3:
            continue
        for passages in passages_of(team):
            new = _new_passages(team, passages)
            counts = np.array([len(one) for one in new], dtype=np.float64)
            for place in np.flatnonzero(beyond(counts, _LEAST_PASSAGES)).tolist():
                one = team[place]
                found.setdefault(_rank(one), _out_of_order(one, passages[place], new[place]))
    everybody = sorted(_rank(one) for team in teams for one in team)
    odd = sorted(found)
    # Evenly spaced ranks may form one stage of a pipeline. The first and the last rank may be the
    # pipeline's ends. Such ranks differ from the others by design.
    if not (is_even(odd) or odd == [everybody[0], everybody[-1]]):
        yield from (found[rank] for rank in odd)


def _new_passages(
    team: Sequence[RankSummary], passages: Sequence[Passages]
) -> list[NDArray[np.int64]]:
    """Returns for each rank the indices of its passages that few other ranks have.

    A passage is left out if it lies beyond the end of almost all other recordings. The other ranks
    may have had the same passage after their recordings ended.
    """
    shared = Shared(passages)
    few = max(2, math.ceil(_FEW_HAVE * len(team)))
    rare = shared.hashes[shared.has.sum(axis=0) < few]
    ends = np.array([one.events for one in team])
    found = []
    for place, mine in enumerate(passages):
        others = np.sort(np.delete(ends, place))
        is_new = np.isin(mine.hashes, rare) & (mine.event < others[-min(_WITNESSES, len(others))])
        found.append(np.flatnonzero(is_new))
    return found


def _out_of_order(one: RankSummary, passages: Passages, new: NDArray[np.int64]) -> Outlier:
    """Makes a "different" outlier, with the line and event of the rank's first rare passage."""
    by_event = new[np.argsort(passages.event[new])]
    line = one.names[int(passages.line[by_event[0]])]
    size = int(passages.bytes[by_event].sum())
    return Outlier(_rank(one), "different", line, size, int(passages.event[by_event[0]]))


def _largest_excess(one: RankSummary, others: Sequence[RankSummary]) -> str | None:
    """Returns the line whose bytes at the peak exceed the other ranks' median the most."""
    known = [dict(other.lines) for other in others]
    more = {
        line: held - middle(np.array([float(lines.get(line, 0)) for lines in known]))
        for line, held in one.lines
    }
    return max(more, key=more.__getitem__) if more else None


def _values(
    teams: Sequence[Sequence[RankSummary]],
    value_of: Callable[[RankSummary], int],
    of: Callable[[RankSummary], int],
    spread: Callable[[NDArray[np.float64]], float] = deviation,
) -> Iterator[tuple[Sequence[RankSummary], NDArray[np.float64], float]]:
    """Yields each group of at least two ranks, with the ranks' values and their usual spread.

    The value of a rank is `value_of(rank)`. The spread tells how far such a value usually lies from
    the group's median.

    The spread is estimated from all groups together. The scale of a group is the median of
    `of(rank)`. Each value's distance from its group's median is divided by the group's scale.
    `spread` turns these ratios into one number. This number times a group's scale is the group's
    spread.
    """
    known = [team for team in teams if len(team) > 1]
    values = [np.array([value_of(one) for one in team], dtype=np.float64) for team in known]
    wholes = [middle(np.array([of(one) for one in team], dtype=np.float64)) for team in known]
    if not known:
        return
    off = [
        (some - middle(some)) / max(whole, 1) for some, whole in zip(values, wholes, strict=True)
    ]
    elsewhere = spread(np.concatenate([*off, [0.0]]))
    for team, some, whole in zip(known, values, wholes, strict=True):
        yield team, some, elsewhere * whole


def _peak(one: RankSummary) -> int:
    return one.peak_allocated_bytes


def _reserved(one: RankSummary) -> int:
    return one.peak_reserved_bytes


def _rank(one: RankSummary) -> int:
    assert one.rank is not None  # `read_job` leaves out summaries without a rank
    return one.rank
