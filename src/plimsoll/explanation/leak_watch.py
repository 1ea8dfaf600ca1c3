"""`LeakWatch` warns while the program runs, and names the line that keeps memory."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.endings import check_new_recording
from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.engine.recorder.recorder import Recorder
from plimsoll.explanation.growing_lines import changes_that_help
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.leaks import LEAST_STEPS, find_leaks
from plimsoll.recordings.analysis.lines import source_lines
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.reading import read_recording
from plimsoll.torch.session.record import events_of

if TYPE_CHECKING:
    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.recordings.analysis.leaks import Leak

_MARK = "step of LeakWatch"


class LeakWarning(UserWarning):
    """Warns that GPU memory grows from step to step; the message names the line.

    See `LeakWatch`, and docs/explain.md.
    """


class LeakWatch:
    """Watches the first steps of a program for lines that keep more memory each step.

    >>> with plimsoll.LeakWatch() as watch:  # doctest: +SKIP
    ...     for batch in batches:
    ...         train(batch)
    ...         watch.step()

    The watch records into a temporary file, analyses it at intervals, and warns once for each line.
    After `steps` steps it stops: recording ends, and the file is deleted. At first, each step of
    an optimizer counts as a step. When the program calls `step()` for the first time, the count
    restarts, and from then on only these calls count. With `record` the file stays, and the
    recording goes on to the end of the `with` block.

    Attributes:
        leaks: The leaks, fastest first.
    """

    def __init__(
        self,
        *,
        steps: int = 256,
        allocator: Allocator | None = None,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        """Makes a watch.

        Args:
            steps: The number of steps to watch.
            allocator: A `plimsoll.Allocator` to watch instead of the process's GPUs.
            record: The path of a file in which the recording is kept. The file's format is that of
                `plimsoll.record`.

        Raises:
            InputError: If there are too few steps to tell growth from chance, or the file's name
                has the ending of another format.
        """
        if steps < LEAST_STEPS:
            raise InputError(
                f"a leak shows in {LEAST_STEPS} steps or more, and {steps} are to be watched"
            )
        if record is not None:
            check_new_recording(record)
        self.leaks: list[Leak] = []
        self._record = record
        self._most_steps = steps
        self._allocator = allocator
        self._warned: set[str] = set()
        self._steps = 0
        self._recorder: Recorder | None = None
        self._is_inside = False

    def __enter__(self) -> LeakWatch:
        """Begins to watch.

        Raises:
            InputError: If another recording is running, if there is neither a real nor a simulated
                GPU, or if the file of `record` exists or cannot be written.
        """
        with ExitStack() as stack:
            path = self._record
            if path is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="plimsoll-"))
                path = Path(folder) / "watch.plim"
            recorder = stack.enter_context(
                Recorder(path, events_of(self._allocator), after_step=self._optimizer_step)
            )
            self._opened = stack.pop_all()
        self._steps = 0
        self._is_told, self._is_watching = False, True
        self._next_look = 2 * LEAST_STEPS
        self._recorder = recorder
        self._is_inside = True
        return self

    def __str__(self) -> str:
        found = format_count(len(self.leaks), "leak") if self.leaks else "no leak"
        is_on = self._recorder is not None and self._is_watching
        state = "still watching" if is_on else "not watching"
        first = f"{found} found in {self._steps} of {self._most_steps} steps, {state}"
        return "\n  ".join([first, *(printable(_growth(leak)) for leak in self.leaks)])

    def __repr__(self) -> str:
        return f"<LeakWatch {str(self).splitlines()[0]}>"

    def step(self) -> None:
        """Marks the end of a step.

        Raises:
            InputError: If the watch's `with` block is not active.
        """
        if not self._is_inside:
            raise InputError(
                "LeakWatch.step() was called outside of its block: write "
                "`with plimsoll.LeakWatch() as watch:` around the loop"
            )
        recorder = self._recorder
        if recorder is None or not self._is_watching:
            return
        recorder.mark(_MARK)
        if not self._is_told:
            self._is_told, self._steps = True, 0
        self._count(recorder)

    def _optimizer_step(self) -> None:
        recorder = self._recorder
        if recorder is not None and self._is_watching and not self._is_told:
            self._count(recorder)

    def _count(self, recorder: Recorder) -> None:
        self._steps += 1
        if self._steps >= self._most_steps:
            if self._record is None:
                self._end()
            else:
                recorder.flush()
                self._last_look(recorder.path)
        elif self._steps >= self._next_look:
            # Each analysis reads the whole recording so far. The next analysis comes when
            # twice as many steps are done. So all analyses together take about twice as long as the
            # last one.
            self._next_look *= 2
            recorder.flush()
            self._look(recorder.path)

    def __exit__(self, *_: object) -> None:
        self._is_inside = False
        self._end()

    def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        with self._opened:  # deletes the temporary file, after the last analysis
            recorder.stop()
            if self._is_watching:
                self._last_look(recorder.path)

    def _last_look(self, path: Path) -> None:
        self._is_watching = False
        self._look(path)

    def _look(self, path: Path) -> None:
        """Reads the recording so far, finds leaks, and warns of new ones."""
        try:
            recording = read_recording(path)
        except InputError:  # the recording has no events yet
            return
        marked = [mark for mark in recording.marks if mark.name == _MARK]
        marks = [replace(mark, name="step") for mark in marked] or recording.marks
        found: list[tuple[Leak, str]] = []
        for trace in recording.devices:
            blocks = find_lifetimes(trace)
            steps = find_steps(blocks, marks, device=trace.device)
            line, names = source_lines(blocks.stack, trace.frames)
            leaks = find_leaks(blocks, steps, line, names)
            helps = changes_that_help(recording, trace, blocks, steps, leaks) if leaks else []
            found += zip(leaks, helps, strict=True)
        found.sort(key=lambda one: -one[0].slope_bytes)
        self.leaks = [leak for leak, _ in found]
        for leak, help_ in found:
            if leak.what not in self._warned:
                self._warned.add(leak.what)
                warnings.warn(
                    printable(f"{_growth(leak)}. {help_}"),
                    LeakWarning,
                    stacklevel=_calls_to_program(),
                )


def _growth(leak: Leak) -> str:
    return (
        f"{leak.what} keeps {format_size(round(leak.slope_bytes))} more GPU memory each step, "
        f"{format_size(leak.grown_bytes)} so far"
    )


def _calls_to_program() -> int:
    """Returns the `stacklevel` with which `warnings.warn` names a line of the program.

    Frames of plimsoll and PyTorch lie between the call of `warnings.warn` and that line.
    """
    torch = sys.modules.get("torch")
    inside = tuple(
        str(Path(str(file)).parent) + os.sep
        for file in (Path(__file__).parent, getattr(torch, "__file__", None))
        if file is not None
    )
    calls, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        calls, frame = calls + 1, frame.f_back
    return calls + 1
