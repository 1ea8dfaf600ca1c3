"""Ends a script early if it would run for ever, or makes more memory events than allowed.

A script would run for ever if it waits in a loop for a value that the simulation does not know. If
Ctrl-C ends the script, this module notes the line that the script was executing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.recordings.analysis.lines import source_line
from plimsoll.torch.simulated.program_frames import integers, is_in_open_loop, where

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


_MOST_COUNTED = 20
"""The number of times that a loop may read an unknown value before plimsoll stops the script.

The number applies to a loop that changes integer variables. One of them may be a counter that ends
the loop.
"""


class StoppedError(BaseException):
    """Raised in a script to end it. The script's `except Exception` does not catch this."""


@dataclass(frozen=True)
class Stop:
    """Why and where a script was stopped before its end.

    Attributes:
        why: Why plimsoll stopped the script.
        line: The line that the script was executing.
    """

    why: str
    line: str


class Stops:
    """Ends the script if it would run for ever, or makes more memory events than allowed.

    Attributes:
        stop: Why and where the script was stopped; None if it was not.
    """

    def __init__(self, simulation: Simulation, at_most_events: int | None) -> None:
        self.stop: Stop | None = None
        self._simulation = simulation
        self._asked: dict[int, tuple[int, list[dict[str, int]] | None]] = {}
        simulation.library.end_with(StoppedError)
        simulation.on_waiting_for_ever(self._waits)
        if at_most_events is not None:
            simulation.library.bound_events(at_most_events, self._has_enough)

    def interrupt(self) -> None:
        """Notes that Ctrl-C has stopped the script."""
        if self.stop is None:
            self.stop = Stop("interrupted", where(self._simulation.runners))

    def _waits(self, stack: int) -> bool:
        """Returns whether to stop the script because a loop in it waits for an unknown value.

        If the loop changes integer variables, the script is stopped only after `_MOST_COUNTED`
        rounds, because one of these variables may be a counter that ends the loop.
        """
        if not is_in_open_loop(self._simulation.runners):
            return False
        counters = integers(self._simulation.runners)
        asked, before = self._asked.get(stack, (0, None))
        self._asked[stack] = (asked + 1, counters)
        if before is None or (counters != before and asked < _MOST_COUNTED):
            return False
        line = source_line(_core.stack_frames(stack))
        self.stop = Stop("it waits for a value that does not come", line)
        return True

    def _has_enough(self) -> None:
        line = where(self._simulation.runners)
        self.stop = Stop("it made as many events as --at-most-events allows", line)
