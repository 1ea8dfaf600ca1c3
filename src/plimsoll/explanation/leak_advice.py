"""Gives advice against leaks: a change at the line, and how much the change would have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.explanation.mended_leaks import with_leak_mended
from plimsoll.recordings.analysis.lines import last_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from plimsoll.explanation.kept_advice import KeptAdvice
    from plimsoll.explanation.search import Search, Setting, Trial
    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps

MOST_LEAKS = 3
_LET_GO = "kept = kept.detach().cpu()  # kept: what outlives its step, such as a loss"


def add_leaks(
    search: Search,
    own: Setting,
    leaks: Sequence[tuple[Leak, NDArray[np.bool_]]],
    lifetimes: Lifetimes,
    steps: Steps,
    found: KeptAdvice,
    *,
    has_stacks: bool,
) -> None:
    """Adds advice on the fastest leaks.

    For each leak, the recording is replayed as if the leaking line had kept nothing.

    Args:
        search: The replays of the recording.
        own: The recorded allocator, settings and limit.
        leaks: The leaks, each with a mask of its blocks.
        lifetimes: The blocks.
        steps: The program's steps.
        found: The advice so far; new advice is added to it.
        has_stacks: Whether leaks are named by lines.
    """
    before: Trial | None = None
    for leak, is_of_line in leaks[:MOST_LEAKS]:
        what, how = _words(leak, has_stacks=has_stacks)
        after: Trial | None = None
        edited = None
        if not found.base.reconstructed_start:
            edited = with_leak_mended(search.recording, lifetimes, steps, is_of_line)
        if edited is not None:
            before = before or search.trial(own, edited[0])
            after = before and search.trial(own, edited[1])
        found.add_leak(what, how, after, None if before is None else before.result)


def _words(leak: Leak, *, has_stacks: bool) -> tuple[str, str]:
    """Returns the advice on a leak, and the text to copy: code or a command."""
    where = last_part(leak.what)
    grows = f"{format_size(round(leak.slope_bytes))} more each step"
    if not has_stacks:
        return f"find out what keeps {where} ({grows})", "plimsoll run --record run.plim"
    return f"keep nothing of {where} on the GPU ({grows})", _LET_GO
