"""What ends a trial before its script does: a value that does not come, a bound, an interrupt."""

from __future__ import annotations

import dis
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.analysis import is_program, source_line

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from plimsoll.torch.simulated.simulation import Simulation


class StoppedError(BaseException):
    """The trial has its answer; scripts that catch an `Exception` do not catch it."""


@dataclass(frozen=True)
class Stop:
    """Why a trial ended before its script.

    Attributes:
        why: What ended the script.
        line: Where the script was.
    """

    why: str
    line: str


class Stops:
    """Ends the script of a trial where it would go on for ever, or for too long.

    Attributes:
        stop: What ended the script; None while nothing has.
    """

    def __init__(self, simulation: Simulation, at_most_events: int | None) -> None:
        self.stop: Stop | None = None
        self._simulation = simulation
        simulation.library.end_with(StoppedError)
        simulation.on_waiting_for_ever(self._waits)
        if at_most_events is not None:
            simulation.library.bound_events(at_most_events, self._has_enough)

    def interrupt(self) -> None:
        """The person at the terminal has seen enough."""
        if self.stop is None:
            self.stop = Stop("interrupted", where(self._simulation.runners))

    def _waits(self, stack: int) -> bool:
        """Only a loop without an end of its own is given up."""
        if not any(map(_is_in_open_loop, _frames(sys._getframe(1), self._simulation.runners))):
            return False
        line = source_line(_core.stack_frames(stack))
        self.stop = Stop("it waits for a value that does not come", line)
        return True

    def _has_enough(self) -> None:
        line = where(self._simulation.runners)
        self.stop = Stop("it made as many events as --at-most-events allows", line)


def where(runners: set[str]) -> str:
    """The line at which the script's main thread is."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = [
        (each.f_code.co_filename, each.f_lineno, each.f_code.co_name)
        for each in _frames(frame, runners)
    ]
    return source_line(frames)


def _frames(frame: FrameType | None, runners: set[str]) -> list[FrameType]:
    """The program's, innermost first."""
    frames = []
    while frame is not None and frame.f_code.co_filename not in runners:
        code = frame.f_code
        if is_program((code.co_filename, frame.f_lineno, code.co_name)):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _is_in_open_loop(frame: FrameType) -> bool:
    """Whether a `while` is at work there: it jumps back, and not to the head of a `for`."""
    heads = _for_heads(frame.f_code)
    return any(
        target <= frame.f_lasti < jump and target not in heads
        for jump, target in _jumps_back(frame.f_code)
    )


def _jumps_back(code: CodeType) -> list[tuple[int, int]]:
    return [
        (each.offset, each.argval)
        for each in dis.get_instructions(code)
        if "JUMP" in each.opname and isinstance(each.argval, int) and each.argval <= each.offset
    ]


def _for_heads(code: CodeType) -> set[int]:
    """Where a `for` takes its next value, and where a generator or a coroutine goes on."""
    return {
        each.offset for each in dis.get_instructions(code) if each.opname in ("FOR_ITER", "SEND")
    }
