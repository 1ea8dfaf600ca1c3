"""Describes the assumptions of a prediction in terms of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.prediction.assumed import (
    LETS_GO_LATER,
    READS_RANDOM,
    READS_UNKNOWN,
    SIZES_BY_DATA,
    TAKEN_AS_FINITE,
    WATCHER_FAILED,
    WORKSPACES,
)
from plimsoll.torch.simulated.library import BEYOND_BUDGET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.assumed import Assumed

_MOST_ASSUMPTIONS = 12
_MOST_NAMED = 4
_AT_LINES = {
    READS_UNKNOWN: "plimsoll made up the number that the script reads here, such as a printed loss",
    READS_RANDOM: "the random number that the script reads here differs from a real GPU's",
    TAKEN_AS_FINITE: "the scaler skips no step here, although a new one often skips its first",
}
"""Texts for assumptions about a line of the script. They stand beside that line."""
_PLAIN = {
    SIZES_BY_DATA[0]: "the size of its result depends on data that plimsoll did not compute",
    SIZES_BY_DATA[1]: "the size of its result depends on random numbers",
    LETS_GO_LATER: "the host's pace decides when a collective lets go of its tensors",
    WORKSPACES[0]: "its workspaces are those of similar convolutions: this one was not measured",
    WORKSPACES[1]: "its workspaces are those of an H100: no card like this one was measured",
    WORKSPACES[2]: "cudnn.benchmark keeps the fastest plan, which differs from run to run",
    "a kernel wrote to memory of the host, which keeps the values from before": (
        "this kernel wrote to host memory; plimsoll left the old values there"
    ),
    "a loop waited for it, so it changed as in a healthy run": (
        "a loop waited for this value, so plimsoll changed it as in a healthy run"
    ),
    "its kernel takes no memory besides its results, but may take about as much as its tensors": (
        "plimsoll counts only its results; its kernel may also take about as much as its tensors"
    ),
    "random numbers of the host are others after it": (
        "the host's random numbers after this call differ from those of a real run"
    ),
}


def assumed_lines(assumptions: Sequence[Assumed]) -> Iterator[str]:
    """Yields the assumptions that may matter, those with the most bytes first.

    Leaves out the assumption that values were not computed, because each read of such a value has
    an assumption of its own.
    """
    by_text: dict[str, dict[str, None]] = {}
    for each in sorted(assumptions, key=_order):
        if each.what != BEYOND_BUDGET:
            text = _AT_LINES.get(each.what) or _PLAIN.get(each.what, each.what)
            by_text.setdefault(text, {})[_named(each)] = None
    if not by_text:
        yield "Nothing was assumed."
        return
    yield "Assumed:"
    for text, named in list(by_text.items())[:_MOST_ASSUMPTIONS]:
        more = len(named) - _MOST_NAMED
        shown = ", ".join(list(named)[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield f"  {shown}: {text}" if shown else f"  {text}"


def _named(assumed: Assumed) -> str:
    """Returns the name beside an assumption: its line, or its operation, perhaps with the line."""
    if assumed.what in _AT_LINES and assumed.line:
        return assumed.line
    where = f" ({assumed.line})" if assumed.line and _matters(assumed) else ""
    size = f" ({format_size(assumed.bytes)})" if assumed.bytes else ""
    return assumed.operation + where + size


def _order(assumed: Assumed) -> tuple[bool, int]:
    """Returns a sort key: failed watchers first, then the most bytes."""
    return assumed.what != WATCHER_FAILED, -(assumed.bytes or 0)


def _matters(assumed: Assumed) -> bool:
    """Returns whether to name the line beside an assumption.

    The line is named if the assumption is about a value that the line read, or about a loop or a
    check in the line.
    """
    return any(word in assumed.what for word in ("nobody knows", "random", "loop", "check"))
