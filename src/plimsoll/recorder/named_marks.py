"""Named moments of a recording: numbers while they happen, names when they are written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.events import EventBatch


class Marks:
    """The names that marks have had so far.

    Attributes:
        clock_us: The time of the last event that was written.
    """

    def __init__(self) -> None:
        self.clock_us = 0
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def number(self, name: str) -> int:
        """The number that stands for a name in events; any thread may ask."""
        with self._lock:
            return self._numbers.setdefault(name, len(self._numbers))

    def named(
        self, events: EventBatch, is_mark: NDArray[np.bool_], *, is_simulated: bool
    ) -> list[tuple[int, int, str]]:
        """Row, time and name of each mark; rows count events only.

        Args:
            events: Events and marks, in order.
            is_mark: Which of them are marks, whose `stack` is the number of the name.
            is_simulated: A simulated clock stands at the event before a mark.
        """
        names = list(self._numbers)
        event_times = events.time_us[~is_mark]
        marks = []
        for order, place in enumerate(np.flatnonzero(is_mark).tolist()):
            row = place - order
            time_us = int(events.time_us[place])
            if is_simulated:
                time_us = int(event_times[row - 1]) if row > 0 else self.clock_us
            marks.append((row, time_us, names[events.stack[place]]))
        return marks
