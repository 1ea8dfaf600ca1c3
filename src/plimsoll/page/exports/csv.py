"""Exports blocks as CSV for spreadsheets, a row for each block."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from plimsoll.recordings.analysis.category_names import CATEGORIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.page.device_view import DeviceView
    from plimsoll.page.run import Run

_AT_ONCE = 1 << 16
_FORMULA = ("=", "+", "-", "@")
"""A spreadsheet evaluates a cell that begins with one of these, unless a quote precedes it."""


def write_csv(run: Run, file: IO[bytes]) -> None:
    """Writes a run's blocks in order of allocation.

    Cells that describe an event are empty if the recording does not have this event. For example,
    a block that was live at the recording's end has no free.
    """
    first = True
    for view in run.devices:
        for begin in range(0, max(len(view.lifetimes), 1), _AT_ONCE):
            table = _rows(view, begin, begin + _AT_ONCE)
            csv.write_csv(table, file, csv.WriteOptions(include_header=first))
            first = False


def _rows(view: DeviceView, begin: int, end: int) -> pa.Table:
    blocks = view.lifetimes[begin:end]
    lines = np.array([_cell(line) for line in view.stacks.lines], dtype=object)
    streams = np.array(view.streams, dtype=np.uint64)
    pools = [f"{first}.{second}" for first, second in blocks.pools]

    def event(numbers: NDArray[np.int64]) -> pa.Array:
        return pa.array(numbers, mask=(numbers < 0) | (numbers >= view.event_count))

    def time(numbers: NDArray[np.int64]) -> pa.Array:
        known = (numbers >= 0) & (numbers < view.event_count)
        times = view.begin_us + view.time_us[np.clip(numbers, 0, view.event_count - 1)]
        return pa.array(times, mask=~known)

    columns: dict[str, Any] = {
        "device": pa.array(np.full(len(blocks), view.device)),
        "allocated_event": event(blocks.start),
        "free_requested_event": event(blocks.end),
        "free_completed_event": event(blocks.completed),
        "allocated_us": time(blocks.start),
        "free_requested_us": time(blocks.end),
        "address": pa.array([hex(address) for address in blocks.address.tolist()], pa.string()),
        "size_bytes": pa.array(blocks.size),
        "shared_bytes": pa.array(blocks.shared),
        "stream": pa.array(streams[blocks.stream]),
        "pool": pa.array([pools[number] for number in blocks.pool.tolist()], pa.string()),
        "category": pa.array(
            [CATEGORIES[number] for number in view.category[begin:end].tolist()], pa.string()
        ),
        "line": pa.array(lines[view.stacks.stack_line[blocks.stack]].tolist(), pa.string()),
    }
    return pa.table(columns)


def _cell(text: str) -> str:
    """Returns untrusted text as a cell that spreadsheets do not evaluate."""
    return f"'{text}" if text.startswith(_FORMULA) else text
