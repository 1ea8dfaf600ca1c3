"""Divides a history into some ten thousand spans of events, so that a page draws it quickly.

For each span the overview keeps the moment with the most live memory, the live memory at that
moment in each group of `keys.py` (by stream, by size, …), and the least live memory. When the page
joins two spans, it keeps the moment with more live memory. So a peak is visible at any zoom, and
the picture always shows a real moment and never a mean. With up to `MOST_SPANS` events, each span
is one event and nothing is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.page.columns import pack_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes

MOST_SPANS = 1 << 16


@dataclass(frozen=True)
class Overview:
    """The spans, as columns with a row for each span.

    Attributes:
        span: The number of events in a span; the last span may have fewer.
        top: For each span, the number of the event after which the most bytes were live; the first
            one if there are several. int64.
        high: Live bytes after `top`. int64.
        low: The least live bytes after any event of the span. int64.
        shared: Live bytes in shared memory after `top`. int64.
        begin_us: The time of the span's first event, in microseconds since the history's first
            event. int64.
    """

    span: int
    top: NDArray[np.int64]
    high: NDArray[np.int64]
    low: NDArray[np.int64]
    shared: NDArray[np.int64]
    begin_us: NDArray[np.int64]

    def pack(self) -> dict[str, Any]:
        """Returns the columns, packed for the page's data."""
        first = np.arange(len(self.top)) * self.span
        return {
            "span": self.span,
            "top": pack_column(self.top - first),
            "high": pack_column(self.high, "delta"),
            "low": pack_column(self.low, "delta"),
            "shared": pack_column(self.shared, "delta"),
            "begin_us": pack_column(self.begin_us, "delta"),
        }


def make_overview(
    lifetimes: Lifetimes, level: NDArray[np.int64], time_us: NDArray[np.int64]
) -> Overview:
    """Divides a history into spans.

    Args:
        lifetimes: The blocks of the history.
        level: Live bytes after each event.
        time_us: The time of each event since the first.
    """
    events = lifetimes.event_count
    span = max(-(-events // MOST_SPANS), 1)
    high, top = _highest(level, span)
    low = -_highest(-level, span)[0]
    shared = np.zeros(len(top), dtype=np.int64)
    if lifetimes.shared.any():
        spilled = lifetimes[lifetimes.shared > 0]
        none = np.zeros(len(spilled), dtype=np.int64)
        shared = bytes_by_group(spilled, none, spilled.shared, 1, top)[:, 0]
    return Overview(span, top, high, low, shared, time_us[::span].copy())


def bytes_by_group(
    lifetimes: Lifetimes,
    group: NDArray[np.integer[Any]],
    sizes: NDArray[np.uint64],
    groups: int,
    events: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Returns the bytes in live blocks after each of the events, by group.

    Args:
        lifetimes: The blocks.
        group: The group of each block.
        sizes: The bytes to count for each block: all its bytes, or those in one tier.
        groups: The number of groups.
        events: The numbers of the events, sorted.

    Returns:
        A table with a row for each event and a column for each group.
    """
    rows = len(events) + 1
    lived = lifetimes.end > lifetimes.start
    change = np.zeros(rows * groups, dtype=np.int64)
    for when, sign in ((lifetimes.start, 1), (lifetimes.end, -1)):
        row = np.searchsorted(events, when[lived])
        # bincount sums in float64, which is exact up to 2**53.
        sums = np.bincount(
            row * groups + group[lived], weights=sizes[lived], minlength=rows * groups
        )
        change += sign * sums.astype(np.int64)
    result: NDArray[np.int64] = np.cumsum(change.reshape(rows, groups), axis=0)[:-1]
    return result


def span_extremes(level: NDArray[np.int64], span: int) -> tuple[NDArray[np.int64], ...]:
    """Returns the lowest and the highest value of `level` in each span of `span` events."""
    return -_highest(-level, span)[0], _highest(level, span)[0]


def _highest(level: NDArray[np.int64], span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns each span's highest level, and the first event in the span at this level."""
    whole = len(level) // span * span
    table = level[:whole].reshape(-1, span)
    first = np.arange(len(table)) * span
    at = first + np.argmax(table, axis=1)
    if whole < len(level):
        at = np.append(at, whole + int(np.argmax(level[whole:])))
    return level[at], at
