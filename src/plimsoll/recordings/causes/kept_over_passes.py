"""Recognises tensors that each iteration of a loop keeps: outputs, metrics, sums of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import MiB, format_size
from plimsoll.recordings.analysis.category_names import NUMBER
from plimsoll.recordings.analysis.leaks import find_leaks
from plimsoll.recordings.analysis.lines import users_part
from plimsoll.recordings.analysis.steps import find_rhythm
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.kept_values import KeptValue, kept_value
from plimsoll.recordings.causes.wording import mostly_at, subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.causes.cause import Facts

_MEANT_TO_STAY = ("parameters", "optimizer_state", "kv_cache", "workspaces", "collectives")
_STAYS = [NUMBER[name] for name in _MEANT_TO_STAY]
_GRAPH = "the graph that"
_SUMMED = "total += loss.item()  # in a list: losses.append(loss.item())"
_KEPT = "kept.append(result.detach().cpu())"
UNSEEN = (_SUMMED, _KEPT)
"""The patches for causes where plimsoll has not found the statement that keeps the value."""
_LARGEST_NUMBER = 8
_LEAST_GROWN = MiB
_LEAST_SHARE = 0.05
_MUCH_LONGER = 3
"""The step with the peak is searched for a loop if it is much longer than the median step.

It has to have more than this many times the events of the median step.
"""
_MOST_SEARCHED = 1 << 20
"""The most events of a step that are searched for a loop, counted from the step's beginning."""


def kept_over_passes(facts: Facts) -> Cause | None:
    """Finds memory that grows with each iteration of a loop, by 5 % of the peak or more in all."""
    for passes in _loops(facts):
        cause = _growth(facts, passes)
        if cause is not None:
            return cause
    return None


def _loops(facts: Facts) -> Iterator[Steps]:
    """Yields the steps. If a very long step has the peak, also yields the iterations inside it."""
    yield facts.passes
    ends = facts.passes.boundaries
    if facts.passes.source != "marks":
        return
    after = int(np.searchsorted(ends, facts.event, side="right"))
    first = int(ends[after - 1]) if after else 0
    last = int(ends[after]) if after < len(ends) else facts.blocks.event_count
    # The marked step that contains the peak may also contain a loop, such as a validation.
    if len(ends) > 1 and last - first > _MUCH_LONGER * float(np.median(np.diff(ends))):
        yield find_rhythm(facts.blocks, first, min(last, first + _MOST_SEARCHED))


def _growth(facts: Facts, passes: Steps) -> Cause | None:
    blocks = np.flatnonzero(~np.isin(facts.category, _STAYS))
    names, group = _by_users_line(facts, blocks)
    leaks = find_leaks(facts.blocks[blocks], passes, group, names)
    most = max(leaks, key=lambda leak: leak.grown_bytes, default=None)
    least = max(_LEAST_GROWN, _LEAST_SHARE * facts.allocated_bytes)
    if most is None or most.grown_bytes < least:
        return None
    return cause_of_leak(facts, most, leaks, passes)


def cause_of_leak(facts: Facts, leak: Leak, leaks: Sequence[Leak], passes: Steps) -> Cause:
    """Makes the `Cause` for a line whose memory grows.

    Args:
        facts: The facts of the device.
        leak: The line's growth.
        leaks: The growth of all lines.
        passes: The iterations of the loop.
    """
    kept = _kept(facts, leaks, passes)
    results = kept[facts.are_from(kept, lambda origin: origin.may_have_grad_fn)]
    graph = _graph(facts, leak, kept, results)
    if graph is None:
        found = _value(facts, leak.what, passes)
        return _cause(leak, leak.what, leak.grown_bytes, found or KeptValue(_KEPT, is_number=False))
    # Each iteration keeps its whole graph, so the growth of all lines counts.
    grown = sum(each.grown_bytes for each in leaks)
    line = facts.callers_line(graph.blocks)
    where = mostly_at(line, facts.line_of_most(graph.blocks))
    perhaps = "" if graph.is_certain else "perhaps "
    found = _value(facts, line or leak.what, passes) or KeptValue(_SUMMED, is_number=True)
    return _cause(leak, line, grown, found, f"{perhaps}{_GRAPH} {subject(line)} makes{where}")


def keeps_graph(cause: Cause) -> bool:
    """Returns whether a cause of this module is a kept autograd graph, certain or suspected."""
    return cause.sentence.removeprefix("perhaps ").startswith(_GRAPH)


@dataclass(frozen=True)
class _Graph:
    """The blocks of a leaking line that an autograd graph keeps, or may keep."""

    blocks: NDArray[np.int64]
    is_certain: bool


def _graph(
    facts: Facts, leak: Leak, kept: NDArray[np.int64], results: NDArray[np.int64]
) -> _Graph | None:
    """Returns the graph that a leaking line keeps; None if nothing suggests one.

    Args:
        facts: The facts of the device.
        leak: The line's growth.
        kept: The live blocks that earlier iterations requested, at any of the growing lines.
        results: The blocks of `kept` whose tensors may have a grad_fn.
    """
    line = users_part(leak.what) or leak.what
    mine = results[facts.are_of_line(results, line)]
    # A graph keeps the results of several operations. A single result may be kept without a graph.
    are_several = len(np.unique(facts.blocks.stack[results])) > 1
    if 2 * facts.bytes_of(mine) > leak.grown_bytes:
        is_certain = bool(facts.are_from(mine, lambda origin: origin.has_grad_fn).all())
        return _Graph(mine, is_certain) if are_several else None
    # A graph also keeps inputs, which have no grad_fn.
    mine = kept[facts.are_of_line(kept, line)]
    mine = mine[facts.are_from(mine, lambda origin: origin.keeps_graph)]
    whole = np.arange(len(facts.blocks))
    made = whole[facts.are_of_line(whole, line)]
    makes_results = facts.are_from(made, lambda origin: origin.has_grad_fn).any()
    may_be = (are_several or makes_results) and 2 * facts.bytes_of(mine) > leak.grown_bytes
    return _Graph(mine, is_certain=False) if may_be else None


def _kept(facts: Facts, leaks: Sequence[Leak], passes: Steps) -> NDArray[np.int64]:
    """Returns blocks of source lines whose memory grows with each iteration.

    Each of these blocks outlived the iteration that requested it.
    """
    ends = passes.boundaries[passes.boundaries <= facts.event]
    kept = facts.live[~np.isin(facts.category[facts.live], _STAYS)]
    kept = kept[facts.blocks.start[kept] < (int(ends[-1]) if len(ends) else 0)]
    lines = [facts.are_of_line(kept, users_part(leak.what) or leak.what) for leak in leaks]
    return kept[np.logical_or.reduce(lines)]


def _value(facts: Facts, line: str, passes: Steps) -> KeptValue | None:
    """Returns how to change the statement that keeps a line's result; None if it is not found."""
    line = users_part(line) or line
    ends = passes.boundaries[passes.boundaries <= facts.event]
    mine = facts.live[facts.are_of_line(facts.live, line)]
    mine = mine[facts.blocks.start[mine] < (int(ends[-1]) if len(ends) else 0)]
    last = mine[np.argsort(facts.blocks.start[mine])[-1:]]  # a line requests its result last
    is_number = bool(facts.blocks.size[last[0]] <= _LARGEST_NUMBER) if len(last) else None
    return kept_value(line, is_number=is_number)


def _cause(leak: Leak, line: str | None, grown: int, kept: KeptValue, graph: str = "") -> Cause:
    """Makes the `Cause` for memory that grows at a line.

    Args:
        leak: The line's growth.
        line: The line that the cause names.
        grown: The bytes by which the memory of this cause grew.
        kept: The changed statement, which no longer makes memory grow.
        graph: The kept graph in words; "" without one.
    """
    slope = round(leak.slope_bytes * grown / leak.grown_bytes)
    more = format_size(slope)
    if graph:
        what = f"{graph} is kept in each pass, {more} more each time"
    else:
        what = f"{subject(line)} keeps {more} more with each pass of its loop"
    if kept.is_number:
        change = "keep the number, not the tensor, of what is summed up or collected there"
    elif graph:
        change = "keep what is summed up or collected there without its graph"
    else:
        change = "keep what is collected there in host memory"
    return Cause(
        name="kept_over_passes",
        sentence=f"{what}, {format_size(grown)} in all",
        change=change,
        bytes=grown,
        line=line,
        patch=kept.patch,
        growth_bytes=slope,
    )


def _by_users_line(facts: Facts, blocks: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Returns the users' lines, and the index of each block's line."""
    numbers: dict[str, int] = {}
    place = np.array(
        [numbers.setdefault(users_part(line) or line, len(numbers)) for line in facts.lines],
        dtype=np.int64,
    )
    return list(numbers), place[facts.line[blocks]]
