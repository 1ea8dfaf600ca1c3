"""The reasons to end a trial before its script ends: a missing value, a bound, an interrupt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.recordings.analysis.lines import source_line
from plimsoll.torch.simulated.program_frames import integers, is_in_open_loop, where

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


_MOST_COUNTED = 20
"""How often a loop that counts may wait for an unknown value: it may end after all."""


class StoppedError(BaseException):
    """The trial has its answer. A script's `except Exception` does not catch this."""


@dataclass(frozen=True)
class Stop:
    """Why a trial ended before its script.

    Attributes:
        why: The reason.
        line: The script's line at that moment.
    """

    why: str
    line: str


class Stops:
    """Ends the script of a trial if it would run for ever, or for too long.

    Attributes:
        stop: The end of the script; None while it runs.
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
        """Stop the script after Ctrl-C of the user."""
        if self.stop is None:
            self.stop = Stop("interrupted", where(self._simulation.runners))

    def _waits(self, stack: int) -> bool:
        """Decides whether to give up a loop without an end; later, if the program counts in it."""
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
