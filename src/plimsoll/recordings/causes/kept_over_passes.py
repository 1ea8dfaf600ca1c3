"""Recognises tensors that each iteration of a loop keeps: outputs, metrics, sums of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import MiB, format_size
from plimsoll.recordings.analysis.category_names import NUMBER
from plimsoll.recordings.analysis.leaks import find_leaks, growing_stacks
from plimsoll.recordings.analysis.lines import users_lines, users_part
from plimsoll.recordings.analysis.steps import NO_STEPS
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.inner_loops import inner_loop
from plimsoll.recordings.causes.kept_values import KeptValue, handed_value, kept_value
from plimsoll.recordings.causes.wording import mostly_at, subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.causes.cause import Facts

_MEANT_TO_STAY = ("parameters", "optimizer_state", "kv_cache", "workspaces", "collectives")
_STAYS = [NUMBER[name] for name in _MEANT_TO_STAY]
_GRAPH = "the graph that"
_SUMMED = "total += loss.item()  # in a list: losses.append(loss.item())"
_HANDED_ON = "keep what is summed up, collected or handed to the next pass without its graph"
_KEPT = "kept.append(result.detach().cpu())"
UNSEEN = (_SUMMED, _KEPT)
"""The patches for causes where plimsoll has not found the statement that keeps the value."""
_LARGEST_NUMBER = 8
_LEAST_GROWN = MiB
NO_GRAD = "with torch.no_grad():"
"""The patch for a graph that no backward pass uses."""


def kept_over_passes(facts: Facts) -> Cause | None:
    """Finds memory that grows with each iteration of a loop, by 1 MiB or more in all."""
    return _growth(facts, facts.passes) or _growth(facts, inner_loop(facts))


def growing_inner_loop(facts: Facts) -> Steps:
    """Returns the passes of `inner_loop` if memory grows with each of them; otherwise no passes."""
    loop = inner_loop(facts)
    return NO_STEPS if _growth(facts, loop) is None else loop


def lines_that_keep(
    facts: Facts, passes: Steps, group: NDArray[np.int64], names: Sequence[str]
) -> list[Leak]:
    """Finds lines whose memory grows. Ignores memory that is meant to stay, such as parameters.

    Args:
        facts: The facts of the device.
        passes: The iterations of the loop.
        group: For each block, the index of its line in `names`.
        names: The names of the lines.
    """
    blocks = np.flatnonzero(~np.isin(facts.category, _STAYS))
    return find_leaks(facts.blocks[blocks], passes, group[blocks], names)


def _growth(facts: Facts, passes: Steps) -> Cause | None:
    names, group = _by_users_line(facts)
    leaks = lines_that_keep(facts, passes, group, names)
    most = max(leaks, key=lambda leak: leak.grown_bytes, default=None)
    if most is None or most.grown_bytes < _LEAST_GROWN:
        return None
    kept = blocks_of_earlier_passes(facts, leaks, passes)
    return cause_of_leak(facts, most, leaks, passes, kept)


def cause_of_leak(
    facts: Facts, leak: Leak, leaks: Sequence[Leak], passes: Steps, kept: NDArray[np.int64]
) -> Cause:
    """Makes the `Cause` for a line whose memory grows.

    Args:
        facts: The facts of the device.
        leak: The line's growth.
        leaks: The growth of all lines.
        passes: The iterations of the loop.
        kept: The result of `blocks_of_earlier_passes` for all lines.
    """
    results = kept[facts.are_from(kept, lambda origin: origin.may_have_grad_fn)]
    graph = _graph(facts, leak, kept, results)
    if graph is None:
        return _kept_result(facts, leak, kept, passes)
    line = facts.callers_line(graph.blocks)
    # Each iteration keeps its whole graph, so the growth of all lines counts that `line` led to.
    grown = sum(
        each.grown_bytes for each in leaks if each is leak or _is_led_to(facts, kept, each, line)
    )
    where = mostly_at(line, facts.line_of_most(graph.blocks))
    perhaps = "" if graph.is_certain else "perhaps "
    made = f"{perhaps}{_GRAPH} {subject(line)} makes{where} is kept in each pass"
    if line is not None and not _trains(facts, graph):
        return _unused_graph(facts, leak, line, grown, graph, made)
    found = _value(facts, line or leak.what, passes) or handed_value(line or leak.what)
    found = found or KeptValue(_SUMMED, is_number=True, change=_HANDED_ON)
    return _cause(leak, line, grown, _changed(found, is_graph=True), found.patch, made)


def _kept_result(facts: Facts, leak: Leak, kept: NDArray[np.int64], passes: Steps) -> Cause:
    """Makes the `Cause` for results without a graph.

    The cause names the statement that keeps them, or else the line that made them. The statement is
    sought from the innermost line of their call stack outwards.

    Args:
        facts: The facts of the device.
        leak: The growth of the line that made them.
        kept: The live blocks that earlier iterations requested, at any of the growing lines.
        passes: The iterations of the loop.
    """
    mine = kept[facts.are_of_line(kept, users_part(leak.what) or leak.what)]
    stacks, count = np.unique(facts.blocks.stack[mine], return_counts=True)
    frames = facts.frames(int(stacks[np.argmax(count)])) if len(stacks) else []
    for line in [leak.what, *users_lines(frames)]:
        found = _value(facts, line, passes, has_graph=False)
        if found is not None:
            keeper = line if found.line is None else _with_number(line, found.line)
            change = _changed(found, is_graph=False)
            return _cause(leak, keeper, leak.grown_bytes, change, found.patch, made=leak.what)
    found = KeptValue(_KEPT, is_number=False)
    return _cause(leak, leak.what, leak.grown_bytes, _changed(found, is_graph=False), found.patch)


def _with_number(line: str, number: int) -> str:
    """Returns "FILE:NUMBER FUNCTION" for a line of the same file and function."""
    place, _, function = (users_part(line) or line).rpartition(" ")
    return f"{place.rpartition(':')[0]}:{number} {function}"


def _is_led_to(facts: Facts, kept: NDArray[np.int64], leak: Leak, line: str | None) -> bool:
    """Returns whether a line led to most of what a leak keeps; True if the line is None."""
    if line is None:
        return True
    mine = kept[facts.are_of_line(kept, users_part(leak.what) or leak.what)]
    stacks = np.unique(facts.blocks.stack[mine]).tolist()
    led = [one for one in stacks if line in users_lines(facts.frames(one))]
    return 2 * facts.bytes_of(mine[np.isin(facts.blocks.stack[mine], led)]) > facts.bytes_of(mine)


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
    # A number, such as a loss that a list also keeps, is no sign of a graph.
    large = results[facts.blocks.size[results] > _LARGEST_NUMBER]
    are_several = len(np.unique(facts.blocks.stack[large])) > 1
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


def blocks_of_earlier_passes(
    facts: Facts, leaks: Sequence[Leak], passes: Steps
) -> NDArray[np.int64]:
    """Returns the blocks that earlier iterations requested at the lines of `leaks`.

    Only blocks that are live at the peak count. Blocks that are meant to stay do not count.
    """
    ends = passes.boundaries[passes.boundaries <= facts.event]
    kept = facts.live[~np.isin(facts.category[facts.live], _STAYS)]
    kept = kept[facts.blocks.start[kept] < (int(ends[-1]) if len(ends) else 0)]
    found = [np.zeros(len(kept), dtype=np.bool_)]
    for leak in leaks:
        line = users_part(leak.what) or leak.what
        of_line = np.flatnonzero(facts.are_of_line(np.arange(len(facts.blocks)), line))
        stacks = growing_stacks(facts.blocks[of_line], passes)
        found.append(facts.are_of_line(kept, line) & np.isin(facts.blocks.stack[kept], stacks))
    return kept[np.logical_or.reduce(found)]


def _value(facts: Facts, line: str, passes: Steps, *, has_graph: bool = True) -> KeptValue | None:
    """Returns how to change the statement that keeps a line's result; None if it is not found."""
    line = users_part(line) or line
    ends = passes.boundaries[passes.boundaries <= facts.event]
    mine = facts.live[facts.are_of_line(facts.live, line)]
    mine = mine[facts.blocks.start[mine] < (int(ends[-1]) if len(ends) else 0)]
    last = mine[np.argsort(facts.blocks.start[mine])[-1:]]  # a line requests its result last
    is_number = bool(facts.blocks.size[last[0]] <= _LARGEST_NUMBER) if len(last) else None
    return kept_value(line, is_number=is_number, has_graph=has_graph)


def _trains(facts: Facts, graph: _Graph) -> bool:
    """Returns whether a backward pass runs between the graphs of the loop, or frees most of them.

    Training that precedes or follows the loop does not count, even if the detected iterations
    include it.
    """
    made = facts.blocks.start[graph.blocks]
    inside = np.searchsorted(facts.backward_starts, (made.min(), made.max()))
    # A program without marks may sum up losses over many detected steps before a backward pass.
    is_used = facts.is_trained if facts.steps.source == "marks" else facts.is_freed_in_backward
    used_bytes = facts.bytes_of(graph.blocks[is_used[graph.blocks]])
    return bool(inside[1] > inside[0]) or 2 * used_bytes > facts.bytes_of(graph.blocks)


def _unused_graph(
    facts: Facts, leak: Leak, line: str, grown: int, graph: _Graph, made: str
) -> Cause:
    """Makes the `Cause` for graphs that no backward pass uses, such as those of a validation."""
    change = "put what runs there under torch.no_grad()"
    is_freed = bool((facts.blocks.end[graph.blocks] < facts.blocks.event_count).any())
    if is_freed or len(facts.backward_starts):
        made = f"{made} for a backward pass that never runs"
    else:  # the program may have ended before its first backward pass
        change = f"if no backward pass follows, {change}"
    return _cause(leak, line, grown, change, NO_GRAD, made)


def _changed(kept: KeptValue, *, is_graph: bool) -> str:
    """Describes in words how to change the statement that keeps a value."""
    if kept.change:
        return kept.change
    if kept.is_number:
        return "keep the number, not the tensor, of what is summed up or collected there"
    if is_graph:
        return "keep what is summed up or collected there without its graph"
    return "keep what is collected there in host memory"


def _cause(
    leak: Leak,
    line: str | None,
    grown: int,
    change: str,
    patch: str,
    graph: str = "",
    *,
    made: str | None = None,
) -> Cause:
    """Makes the `Cause` for memory that grows at a line.

    Args:
        leak: The line's growth.
        line: The line that the cause names.
        grown: The bytes by which the memory of this cause grew.
        change: The advice.
        patch: The changed statement, which no longer makes memory grow.
        graph: The part of the sentence that says that a graph is kept; "" without a graph.
        made: The line that made the memory; None if it is `line`, or a graph's.
    """
    slope = round(leak.slope_bytes * grown / leak.grown_bytes)
    more = format_size(slope)
    if graph:
        what = f"{graph}, {more} more each time"
    else:
        at = mostly_at(line, made).replace("mostly ", "made ")
        what = f"{subject(line)} keeps {more} more with each pass of its loop{at.rstrip(',')}"
    return Cause(
        name="kept_over_passes",
        sentence=f"{what}, {format_size(grown)} in all",
        change=change,
        bytes=grown,
        line=line,
        patch=patch,
        growth_bytes=slope,
    )


def _by_users_line(facts: Facts) -> tuple[list[str], NDArray[np.int64]]:
    """Returns the users' lines, and the index of each block's line."""
    numbers: dict[str, int] = {}
    place = np.array(
        [numbers.setdefault(users_part(line) or line, len(numbers)) for line in facts.lines],
        dtype=np.int64,
    )
    return list(numbers), place[facts.line]
