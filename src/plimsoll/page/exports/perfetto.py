"""Exports to the JSON trace event format, for ui.perfetto.dev and chrome://tracing.

Each device is shown as a process, with counters of live, reserved and shared memory, an
asynchronous slice for the life of every block, and an instant for every mark. Times are
microseconds since the first event.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from plimsoll.page.keys import stream_names
from plimsoll.recordings.analysis.category_names import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.page.device_view import DeviceView
    from plimsoll.page.run import Run

_AT_ONCE = 1 << 16


def write_perfetto(run: Run, file: IO[bytes]) -> None:
    """Writes a run as a JSON trace."""
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = b""
    for view in run.devices:
        for event in _events(run, view):
            file.write(separator + json.dumps(event, separators=(",", ":")).encode())
            separator = b",\n"
    file.write(b"\n]}\n")


def _events(run: Run, view: DeviceView) -> Iterator[dict[str, Any]]:
    pid = view.device
    name = f"{run.title}, device {view.device}"
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield from _counters(view)
    for moment in view.moments:
        time = int(view.time_us[moment.event])
        yield {"ph": "i", "s": "p", "pid": pid, "tid": 0, "ts": time, "cat": moment.kind,
               "name": moment.text}  # fmt: skip
    yield from _lives(view)


def _counters(view: DeviceView) -> Iterator[dict[str, Any]]:
    segments = view.segments
    reserved = _steps(view, segments.start, segments.end, segments.size.astype(np.int64))
    lifetimes = view.lifetimes
    lived = lifetimes.end > lifetimes.start
    live = lifetimes[np.flatnonzero(lived)]
    allocated = _steps(view, live.start, live.end, live.size.astype(np.int64))
    counters = [("allocated", allocated), ("reserved", reserved)]
    if lifetimes.shared.any():
        shared = _steps(view, live.start, live.end, live.shared.astype(np.int64))
        counters.append(("in shared memory", shared))
    for name, (times, levels) in counters:
        for time, level in zip(times.tolist(), levels.tolist(), strict=True):
            yield {"ph": "C", "pid": view.device, "ts": time, "name": name,
                   "args": {"bytes": level}}  # fmt: skip


def _steps(
    view: DeviceView,
    start: np.ndarray[Any, np.dtype[np.int64]],
    end: np.ndarray[Any, np.dtype[np.int64]],
    sizes: np.ndarray[Any, np.dtype[np.int64]],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the times at which a counter changes, and the counter's value after each change.

    The counter grows by `sizes[i]` at the event `start[i]`, and shrinks by `sizes[i]` at the event
    `end[i]`. If several changes have the same time, only the last one is kept.
    """
    change = np.zeros(view.event_count + 1, dtype=np.int64)
    np.add.at(change, np.maximum(start, 0), sizes)
    np.subtract.at(change, np.maximum(end, 0), sizes)
    level = np.cumsum(change[: view.event_count])
    changed = np.flatnonzero(change[: view.event_count])
    if len(changed) == 0 or changed[0] != 0:
        changed = np.append(0, changed)
    times = view.time_us[changed]
    last = np.append(times[1:] != times[:-1], True)
    return times[last], level[changed[last]]


def _lives(view: DeviceView) -> Iterator[dict[str, Any]]:
    lifetimes = view.lifetimes
    streams = stream_names(view.streams)
    pid = view.device
    for first in range(0, len(lifetimes), _AT_ONCE):
        part = lifetimes[first : first + _AT_ONCE]
        begins = view.time_us[np.maximum(part.start, 0)].tolist()
        ends = view.time_us[np.clip(part.end, 0, view.event_count - 1)].tolist()
        lines = view.stacks.stack_line[part.stack].tolist()
        categories = view.category[first : first + _AT_ONCE].tolist()
        for row in range(len(part)):
            category = CATEGORIES[categories[row]].replace("_", " ")
            common = {"pid": pid, "tid": 0, "cat": "block", "id": first + row, "name": category}
            yield {
                **common,
                "ph": "b",
                "ts": begins[row],
                "args": {
                    "size_bytes": int(part.size[row]),
                    "shared_bytes": int(part.shared[row]),
                    "address": hex(int(part.address[row])),
                    "stream": streams[int(part.stream[row])],
                    "line": view.stacks.lines[lines[row]],
                },
            }
            yield {**common, "ph": "e", "ts": ends[row]}
