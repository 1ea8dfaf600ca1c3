"""The names of a recording's marks and labels.

A mark names a moment, such as the end of a step. A label says what the tensor at an address is used
for. In the buffer, marks and labels are events with a number instead of the name.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from plimsoll.recordings.events import EventBatch


class Marks:
    """The names of all marks and labels so far.

    Attributes:
        clock_us: The time of the last event that was written to the file.
    """

    def __init__(self) -> None:
        self.clock_us = 0
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def number(self, name: str) -> int:
        """Returns the number that events hold instead of this name. Safe to call in any thread."""
        with self._lock:
            return self._numbers.setdefault(name, len(self._numbers))

    def marks(self, events: EventBatch, *, is_simulated: bool) -> list[tuple[int, int, str]]:
        """Returns the row, time and name of each mark.

        A mark's row is the number of events before it, without marks and labels.

        Args:
            events: Events, marks and labels, in order.
            is_simulated: Whether the clock is simulated; a mark then gets the time of the event
                before it.
        """
        names = list(self._numbers)
        is_event = _is_event(events)
        rows, event_times = np.cumsum(is_event), events.time_us[is_event]
        marks = []
        for place in np.flatnonzero(events.action == _core.EVENT_MARK).tolist():
            row = int(rows[place])
            time_us = int(events.time_us[place])
            if is_simulated:
                time_us = int(event_times[row - 1]) if row > 0 else self.clock_us
            marks.append((row, time_us, names[events.stack[place]]))
        return marks

    def labels(
        self, devices: NDArray[np.int32], events: EventBatch
    ) -> list[tuple[int, int, int, str]]:
        """Returns the row, device, address and name of each label.

        A label's row is the number of events before it, without marks and labels.

        Args:
            devices: The device of each entry of `events`.
            events: Events, marks and labels, in order.
        """
        names = list(self._numbers)
        rows = np.cumsum(_is_event(events))
        places = np.flatnonzero(events.action == _core.EVENT_LABEL)
        return [
            (int(rows[p]), int(devices[p]), int(events.address[p]), names[events.stack[p]])
            for p in places.tolist()
        ]

    def known_labels(
        self, known: Iterable[tuple[int, int, int]]
    ) -> list[tuple[int, int, int, str]]:
        """Returns entries like those of `labels`, for blocks that are older than the file.

        The row of each entry is 0.

        Args:
            known: The device and the address of each block, and the number of its label's name.
        """
        names = list(self._numbers)
        return [(0, device, address, names[number]) for device, address, number in known]


def _is_event(events: EventBatch) -> NDArray[np.bool_]:
    return events.action < _core.EVENT_LABEL
