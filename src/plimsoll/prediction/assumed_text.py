"""Describes the assumptions of a prediction in terms of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.prediction.assumed import (
    READS,
    SIZES_BY_DATA,
    TAKEN_AS_FINITE,
    WATCHER_FAILED,
)
from plimsoll.torch.simulated.library import BEYOND_BUDGET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.assumed import Assumed

_MOST_ASSUMPTIONS = 12
_MOST_NAMED = 4
_AT_LINES = (*READS, TAKEN_AS_FINITE)
"""The assumptions about a line of the script. They stand beside that line."""


def assumed_lines(assumptions: Sequence[Assumed]) -> Iterator[str]:
    """Yields lines on the assumptions: failed watchers, then those with the most bytes first.

    Leaves out the assumption that values were not computed, because each read of such a value has
    an assumption of its own.
    """
    by_text: dict[str, dict[str, None]] = {}
    for each in sorted(assumptions, key=_order):
        if each.what != BEYOND_BUDGET:
            by_text.setdefault(each.what, {})[_named(each)] = None
    if not by_text:
        yield "Nothing was assumed."
        return
    yield "Assumed:"
    for text, named in list(by_text.items())[:_MOST_ASSUMPTIONS]:
        more = len(named) - _MOST_NAMED
        shown = ", ".join(list(named)[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield f"  {shown}: {text}" if shown else f"  {text}"


def _named(assumed: Assumed) -> str:
    """Returns where an assumption applies, as printed before the assumption.

    This is a line of the script, or the name of an operation. If `_matters` returns True, the
    script's line follows the name. `Assumed.bytes` follows too, if known.
    """
    if assumed.what in _AT_LINES and assumed.line:
        return assumed.line
    where = f" ({assumed.line})" if assumed.line and _matters(assumed) else ""
    size = f" ({format_size(assumed.bytes)})" if assumed.bytes else ""
    return assumed.operation + where + size


def _order(assumed: Assumed) -> tuple[bool, int]:
    """Returns a sort key: failed watchers first, then the most bytes."""
    return assumed.what != WATCHER_FAILED, -(assumed.bytes or 0)


def _matters(assumed: Assumed) -> bool:
    """Returns whether to name the script's line beside an assumption.

    The line is named if the assumption is about random numbers, a loop, a check, or a size that
    depends on data.
    """
    words = ("random", "loop", "check")
    return assumed.what in SIZES_BY_DATA or any(word in assumed.what for word in words)
