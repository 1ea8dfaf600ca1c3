"""Recognises evaluation without `no_grad`: autograd saves memory, and no backward pass runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.analysis.category_names import NUMBER
from plimsoll.recordings.analysis.evidence import Place
from plimsoll.recordings.causes.autocast_cache import autocast_copies
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import mostly_at, subject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.1
_LEAST_HELD = 0.2
"""The least share of the peak for graphs that results hold. Training often holds one for a metric.
"""
_LEAST_RESULTS = 0.25
"""Results with a grad_fn take at least this share of the memory of an unused graph."""
_NO_GRAPH = ("parameters", "gradients", "optimizer_state", "kv_cache", "workspaces", "collectives")
_PLACE = re.compile(r"(.+):(\d+) (.+)")
_CHANGE = "put what runs there under torch.no_grad()"
_NOT_YET = "has not run"


@dataclass(frozen=True)
class _Graphs:
    """Graphs that no backward pass has used, made by neighbouring lines of one function.

    Attributes:
        line: The lines, as "FILE:LINE FUNCTION" or "FILE:FIRST-LAST FUNCTION"; None if unknown.
        blocks: The blocks that are live at the peak.
    """

    line: str | None
    blocks: NDArray[np.int64]


def unused_activations(facts: Facts) -> Cause | None:
    """Finds graphs that no backward pass uses, if they are a tenth of the peak or more."""
    released, held = _released(facts), _held(facts)
    found = _largest(facts, np.union1d(released, held), released)
    if found is None:
        return _in_some_passes(facts, released)
    size = facts.bytes_of(found.blocks)
    is_released = 2 * facts.bytes_of(np.intersect1d(found.blocks, released)) > size
    least = _LEAST_SHARE if is_released else _LEAST_HELD
    if not size or size < least * facts.allocated_bytes:
        return None
    where = subject(found.line)
    keeps = "keep" if re.search(r":\d+-\d+$", where) else "keeps"
    runs, change = _words(facts, found.blocks)
    return Cause(
        name="unused_activations",
        sentence=f"{where} {keeps} {format_size(size)}"
        f"{mostly_at(found.line, facts.line_of_most(found.blocks))} for a backward pass that "
        f"{runs}",
        change=change,
        bytes=size,
        line=found.line,
        # A program that trains, and failed before its first backward pass, needs the graph.
        patch="" if runs == _NOT_YET else "with torch.no_grad():",
    )


def _in_some_passes(facts: Facts, released: NDArray[np.int64]) -> Cause | None:
    """Makes the `Cause` for unused graphs whose lines all run in training, in other passes."""
    if not facts.lines_of_training:
        return None
    of_others = [released[:0], *facts.callers_lines(released).values()]
    released = np.setdiff1d(released, np.concatenate(of_others))
    size, line = facts.bytes_of(released), facts.line_of_most(released)
    if not size or size < _LEAST_SHARE * facts.allocated_bytes or line is None:
        return None
    return Cause(
        name="unused_activations",
        sentence=f"{subject(line)} keeps {format_size(size)} for a backward pass that other passes "
        "of its loop run, and these do not",
        change="put the passes without a backward pass under torch.no_grad()",
        bytes=size,
        line=line,
    )


def _released(facts: Facts) -> NDArray[np.int64]:
    """Returns the live blocks of graphs that the program drops whole, outside backward passes."""
    found = np.setdiff1d(facts.live_of("unused_activations"), autocast_copies(facts))
    # A training step has unused activations too. So a block counts here only if no backward pass
    # allocates during the block's life.
    starts, ends = facts.blocks.start[found], facts.blocks.end[found]
    passes = np.searchsorted(facts.backward_starts, (starts, ends))
    found = found[passes[0] == passes[1]]
    is_training = facts.bytes_of(facts.live_of("activations")) > facts.bytes_of(found)
    # Autograd keeps nothing if no operation has a grad_fn, as in a model with frozen parameters.
    has_graph = not facts.are_from(found, lambda origin: not origin.may_have_grad_fn).all()
    none: NDArray[np.int64] = found[:0]
    return found if has_graph and not is_training else none


def _held(facts: Facts) -> NDArray[np.int64]:
    """Returns the live blocks of graphs under lines that training does not run.

    The results of an evaluation hold its graph for as long as a variable or a list holds them.
    """
    live = facts.live[~np.isin(facts.category[facts.live], [NUMBER[name] for name in _NO_GRAPH])]
    live = live[np.isin(facts.place[live], (Place.PROGRAM, Place.FORWARD))]
    live = live[facts.are_from(live, lambda origin: origin.keeps_graph)]
    live = np.setdiff1d(live, autocast_copies(facts))
    results = live[facts.are_from(live, lambda origin: origin.may_have_grad_fn)]
    found = [
        own
        for own in facts.callers_lines(live).values()
        if facts.bytes_of(np.intersect1d(own, results)) > _LEAST_RESULTS * facts.bytes_of(own)
    ]
    return np.sort(np.concatenate(found)) if found else live[:0]


def _largest(facts: Facts, found: NDArray[np.int64], released: NDArray[np.int64]) -> _Graphs | None:
    """Returns the graphs of the function that made the most of them; None without a line.

    Args:
        facts: The facts of the device.
        found: The blocks of all graphs.
        released: Those that `_released` returned.
    """
    if not facts.blocks.stack.any():
        return _Graphs(None, found)
    functions: dict[tuple[str, str], dict[int, NDArray[np.int64]]] = {}
    for line, own in facts.callers_lines(found).items():
        if (place := _PLACE.fullmatch(line)) is not None:
            functions.setdefault((place[1], place[3]), {})[int(place[2])] = own
    graphs = [
        _together(facts, file, function, lines) for (file, function), lines in functions.items()
    ]
    # A single result may be held without a graph, unless the program drops it as part of one.
    least = _LEAST_SHARE * facts.allocated_bytes
    sure = [
        one
        for one in graphs
        if len(np.unique(facts.blocks.stack[one.blocks])) > 1
        or (np.isin(one.blocks, released).all() and facts.bytes_of(one.blocks) >= least)
    ]
    return max(sure, key=lambda each: facts.bytes_of(each.blocks), default=None)


def _together(
    facts: Facts, file: str, function: str, lines: dict[int, NDArray[np.int64]]
) -> _Graphs:
    """Returns the graphs of a function's lines around the one that made the most of them.

    Lines belong together if training runs no line between them.

    Args:
        facts: The facts of the device.
        file: The file.
        function: The function's name.
        lines: The blocks of each line.
    """
    trained = [
        int(place[2])
        for line in facts.lines_of_training
        if (place := _PLACE.fullmatch(line)) is not None and place[1] == file
    ]
    most = max(lines, key=lambda line: facts.bytes_of(lines[line]))
    after = min((line for line in trained if line > most), default=max(lines) + 1)
    before = max((line for line in trained if line < most), default=min(lines) - 1)
    inside = sorted(line for line in lines if before < line < after)
    first, last = inside[0], inside[-1]
    name = f"{first}" if first == last else f"{first}-{last}"
    blocks = np.sort(np.concatenate([lines[line] for line in inside]))
    return _Graphs(f"{file}:{name} {function}", blocks)


def _words(facts: Facts, blocks: NDArray[np.int64]) -> tuple[str, str]:
    """Returns the words for a backward pass that is missing, and the advice."""
    # A recording of a GPU does not say which lines a backward pass with a retained graph comes
    # from. A program that failed may have been about to run a backward pass.
    is_certain = facts.are_from(blocks, lambda origin: origin.role is not None).all()
    is_open = (facts.blocks.end[blocks] >= facts.blocks.event_count).any()
    if is_open and not len(facts.backward_starts):
        return _NOT_YET, f"if none follows, {_CHANGE}"
    if is_open and facts.failed:
        last = facts.backward_starts[-1]
        if (facts.blocks.start[blocks] > last).any():
            return _NOT_YET, f"if none follows, {_CHANGE}"
    if not is_certain and facts.blocks.stack.any():
        return "seems never to run", f"if no backward pass uses it, {_CHANGE}"
    return "never runs", _CHANGE
