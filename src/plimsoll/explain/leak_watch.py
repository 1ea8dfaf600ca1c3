"""`LeakWatch`: a warning while the program runs, with the line that keeps memory."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.analysis import find_lifetimes, find_steps, source_lines
from plimsoll.errors import InputError
from plimsoll.explain.leaks import LEAST_STEPS, find_leaks
from plimsoll.record import record
from plimsoll.trace import read_recording
from plimsoll.units import format_size

if TYPE_CHECKING:
    from types import TracebackType

    from plimsoll.engine import Allocator
    from plimsoll.explain.result import Leak
    from plimsoll.record import Recorder

_MARK = "step of LeakWatch"


class LeakWarning(UserWarning):
    """GPU memory grows from step to step; the message names the line."""


class LeakWatch:
    """Watches the first steps of a program for lines that keep more memory each step.

    >>> with plimsoll.LeakWatch() as watch:  # doctest: +SKIP
    ...     for batch in batches:
    ...         train(batch)
    ...         watch.step()

    It records into a temporary file, looks at it now and then, and warns once for each line. After
    `steps` steps it stops by itself: nothing is recorded any more, and the file is gone. Where
    `step()` is never called, the steps of optimizers count.

    Attributes:
        leaks: What was found, fastest first.
    """

    def __init__(self, *, steps: int = 256, allocator: Allocator | None = None) -> None:
        """Make a watch.

        Args:
            steps: How many steps to watch.
            allocator: Watch this allocator of `plimsoll.Allocator`, and not the process's GPUs.

        Raises:
            InputError: If that is too few steps to tell growth from chance.
        """
        if steps < LEAST_STEPS:
            raise InputError(
                f"a leak shows in {LEAST_STEPS} steps or more, and {steps} are to be watched"
            )
        self.leaks: list[Leak] = []
        self._most_steps = steps
        self._allocator = allocator
        self._warned: set[str] = set()
        self._recorder: Recorder | None = None

    def __enter__(self) -> LeakWatch:
        """Begin.

        Raises:
            InputError: If another recording is on, or there is no GPU, real or simulated.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="plimsoll-")
        recorder = record(Path(self._folder.name) / "watch.plim", allocator=self._allocator)
        try:
            recorder.__enter__()
        except BaseException:
            self._folder.cleanup()
            raise
        self._recorder = recorder
        self._steps = 0
        self._next_look = 2 * LEAST_STEPS
        return self

    def step(self) -> None:
        """Say that a step ends here."""
        if self._recorder is None:
            return
        self._recorder.mark(_MARK)
        self._steps += 1
        if self._steps >= self._most_steps:
            self._end()
        elif self._steps >= self._next_look:
            self._next_look *= 2  # so that looking costs no more than recording
            self._recorder.flush()
            self._look(self._recorder.path, callers=2)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            recorder.stop()
            self._look(recorder.path, callers=3)
        finally:
            self._folder.cleanup()

    def _look(self, path: Path, *, callers: int) -> None:
        """Look for leaks; a warning names who is so many calls up."""
        try:
            recording = read_recording(path)
        except InputError:  # nothing has happened yet
            return
        marked = [mark for mark in recording.marks if mark.name == _MARK]
        marks = [replace(mark, name="step") for mark in marked] or recording.marks
        self.leaks = []
        for trace in recording.devices:
            found = find_lifetimes(trace)
            steps = find_steps(found, marks, device=trace.device)
            line, names = source_lines(found.stack, trace.frames)
            self.leaks += find_leaks(found, steps, line, names)
        self.leaks.sort(key=lambda leak: -leak.slope_bytes)
        for leak in self.leaks:
            if leak.what not in self._warned:
                self._warned.add(leak.what)
                warnings.warn(
                    f"{leak.what} keeps {format_size(round(leak.slope_bytes))} more GPU memory "
                    f"each step, {format_size(leak.grown_bytes)} so far",
                    LeakWarning,
                    stacklevel=callers + 1,
                )
