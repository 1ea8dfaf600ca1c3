"""Gives advice against leaks.

The advice is a change of the line that keeps the memory, and how much the change would have saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.explanation.mended_leaks import with_leak_mended
from plimsoll.recordings.analysis.lines import last_part
from plimsoll.recordings.causes.kept_over_passes import UNSEEN, keeps_graph
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.explanation.kept_advice import KeptAdvice
    from plimsoll.explanation.search import Search, Setting, Trial
    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.causes.cause import Cause

MOST_LEAKS = 3


@dataclass(frozen=True)
class FoundLeak:
    """A leak that was found in a recording.

    Attributes:
        leak: The growing memory, of one source line or of requests of one size.
        is_of_line: A mask over all blocks of the device: True for the blocks of that line or size.
        cause: Why the memory is kept.
        passes: The iterations with which the memory grows: the program's steps, or the passes of
            all loops inside steps.
    """

    leak: Leak
    is_of_line: NDArray[np.bool_]
    cause: Cause
    passes: Steps


def add_leaks(
    search: Search,
    own: Setting,
    leaks: Sequence[FoundLeak],
    lifetimes: Lifetimes,
    found: KeptAdvice,
    *,
    has_stacks: bool,
) -> None:
    """Adds advice on the fastest leaks.

    For each leak, the recording is replayed as if the leaking line had kept nothing. Several lines
    may leak because the program keeps one autograd graph. These lines together get one piece of
    advice, for the line that keeps the graph.

    Args:
        search: The replays of the recording.
        own: The recorded allocator, settings and limit.
        leaks: The leaks.
        lifetimes: The blocks.
        found: The advice so far; new advice is added to it.
        has_stacks: Whether leaks are named by lines.
    """
    before: Trial | None = None
    together = _by_change(leaks) if has_stacks else [[leak] for leak in leaks]
    for group in together[:MOST_LEAKS]:
        what, how = _words(group, has_stacks=has_stacks)
        is_of_line = np.logical_or.reduce([one.is_of_line for one in group])
        after: Trial | None = None
        edited = None
        if not found.base.reconstructed_start:
            edited = with_leak_mended(search.recording, lifetimes, group[0].passes, is_of_line)
        if edited is not None:
            before = before or search.trial(own, edited[0])
            after = before and search.trial(own, edited[1])
        found.add_leak(what, how, after, None if before is None else before.result)


def _by_change(leaks: Sequence[FoundLeak]) -> list[list[FoundLeak]]:
    """Groups the leaks that the same change would mend, the fastest growth first.

    Leaks of the steps and leaks of a loop inside a step are never in one group.
    """
    loops = dict.fromkeys(one.leak.inside_step for one in leaks)
    groups = [
        group
        for loop in loops
        for group in _of_one_loop([one for one in leaks if one.leak.inside_step == loop])
    ]
    return sorted(groups, key=lambda group: -_slope(group))


def _of_one_loop(leaks: Sequence[FoundLeak]) -> list[list[FoundLeak]]:
    """Groups the leaks of one loop that the same change would mend.

    An autograd graph holds blocks of several lines, such as those of the model and of the loss. The
    leaks of these lines form one group, because one statement keeps the graph. A graph also holds
    tensors without a grad_fn, such as its inputs. If plimsoll has not found the statement that
    keeps a leak's tensors, the leak joins the group of the fastest-growing graph.
    """
    groups: dict[str, list[FoundLeak]] = {}
    for one in leaks:
        key, cause = one.leak.what, one.cause
        if keeps_graph(cause) and cause.line is not None:
            is_seen = cause.patch and cause.patch not in UNSEEN
            key = f"graph {cause.patch if is_seen else cause.line}"
        groups.setdefault(key, []).append(one)
    graphs = [group for key, group in groups.items() if key.startswith("graph ")]
    graph = max(graphs, key=_slope, default=None)
    if graph is not None:
        for key, group in list(groups.items()):
            if group is not graph and all(one.cause.patch in UNSEEN for one in group):
                graph += groups.pop(key)
    return list(groups.values())


def _slope(group: Sequence[FoundLeak]) -> float:
    return sum(one.leak.slope_bytes for one in group)


def _words(group: Sequence[FoundLeak], *, has_stacks: bool) -> tuple[str, str]:
    """Returns the advice on a group of leaks, and the text to copy: code or a command."""
    leak, cause = group[0].leak, group[0].cause
    where = last_part(leak.what)
    grows = f"{format_size(round(_slope(group)))} more {leak.each_time}"
    if not has_stacks:
        return f"find out what keeps {where} ({grows})", "plimsoll run --record run.plim"
    if keeps_graph(cause) and cause.line is not None:
        at = subject(last_part(cause.line))
        return f"{cause.change.replace(' there', f' at {at}', 1)} ({grows})", cause.patch
    return f"keep nothing of {where} on the GPU ({grows})", cause.patch
