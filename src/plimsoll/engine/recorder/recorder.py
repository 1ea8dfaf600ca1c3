"""Writes the events of a source to a file, in a thread of its own.

The threads that allocate do no more than copy each event into a buffer (`core/include/plimsoll/
events/event_buffer.h`). The writing thread empties the buffer, resolves call stacks, packs columns
and writes them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import wraps
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np

from plimsoll import _core
from plimsoll.base.endings import check_new_recording
from plimsoll.base.errors import InputError
from plimsoll.base.files import check_is_new
from plimsoll.base.notebook_form import NotebookForm, answer, preformatted
from plimsoll.base.printable import printable
from plimsoll.base.standard_streams import reserve_closed_descriptors
from plimsoll.base.telemetry.job import place_of_process
from plimsoll.base.units import format_count
from plimsoll.base.watchers import Watchers
from plimsoll.engine.recorder.named_marks import Marks
from plimsoll.engine.recorder.parts import (
    Beginning,
    LiveBlocks,
    earlier_path,
    is_full,
    parse_limit,
)
from plimsoll.engine.tensor_uses import TensorUses
from plimsoll.recordings.earlier import Earlier
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.stream_writer import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from plimsoll.base.process_place import ProcessPlace
    from plimsoll.engine.recorder.event_source import EventSource, Segments

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_CAPACITY = 1 << 17
"""How many events the buffer can hold. Fast training makes fewer events in a second."""

INTERVAL_SECONDS = 0.1

_active: Recorder | None = None
_active_lock = threading.Lock()


class Recorder(NotebookForm):
    """A recording to a file; made by `plimsoll.record`.

    >>> import plimsoll
    >>> with plimsoll.record("run.plim") as recording:  # doctest: +SKIP
    ...     train()
    ...     recording.mark("evaluation")

    Attributes:
        path: The path of the file.
        event_count: The number of events written so far.
        dropped: The number of events lost because the buffer was full.

    Args:
        path: The path of the file, a `.plim`; it must not exist.
        find_source: Called when a recording begins; returns the source of the events.
        stacks: Whether to keep the Python call stack of each request.
        after_step: Called after each step of an optimizer.
        limit: The most that the recording's two files take together; see `plimsoll.record`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        find_source: Callable[[], EventSource],
        *,
        stacks: bool = True,
        after_step: Callable[[], None] | None = None,
        limit: int | str | None = None,
    ) -> None:
        check_new_recording(path)
        self._limit = None if limit is None else parse_limit(limit)
        self.path = Path(path)
        self.event_count = 0
        self.dropped = 0
        self._stacks = stacks
        self._find_source = find_source
        self._after_step = after_step
        self._marks = Marks()
        self._buffer: _core.EventBuffer | None = None
        self._writing = threading.Lock()

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Wraps a function so that each of its calls is recorded.

        The first call is written to `path`, the second one to a file with "-2" added to its name,
        and so on.
        """
        first, recorded = self.path, 0

        @wraps(function)
        def record_call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            nonlocal recorded
            if self._buffer is not None:
                return function(*arguments, **named)
            number = recorded + 1
            if number > 1:
                self.path = first.with_name(f"{first.stem}-{number}{first.suffix}")
            with self:
                recorded = number
                return function(*arguments, **named)

        return record_call

    def __str__(self) -> str:
        lost = f", {format_count(self.dropped, 'event')} lost" if self.dropped else ""
        state = "recording" if self._buffer is not None else "not recording"
        return f"{self.path}: {state}, {format_count(self.event_count, 'event')} written{lost}"

    def __repr__(self) -> str:
        return f"<Recorder {self}>"

    def _repr_html_(self) -> str:
        path = str(self.path)
        ways = f"plimsoll.explain({path!r})\nplimsoll.view({path!r})"
        return answer(str(self)) + (preformatted(ways) if self.event_count else "")

    def __enter__(self) -> Recorder:
        """Begins the recording.

        Raises:
            InputError: If the file exists or cannot be written, another recording is running, or
                there is no GPU, real or simulated.
        """
        global _active
        with _active_lock:
            if _active is not None and not _active._is_of_parent():
                raise InputError(
                    f"{self.path}: a recording to {_active.path} is on already, and a process has "
                    "one at a time"
                )
            check_is_new(self.path)
            if self._limit is not None:
                check_is_new(earlier_path(self.path))
            self._source = self._find_source()
            self._begin()
            _active = self
            self._source.when_torch_is_there(self._follow_program)
        return self

    def _begin(self) -> None:
        reserve_closed_descriptors()
        self._process = os.getpid()
        self._failure: Exception | None = None
        self._marks.clock_us = 0
        self.event_count = self.dropped = self._dropped_earlier = 0
        self._first_us: int | None = None
        self._live = LiveBlocks()
        self._next: Beginning | None = None
        self._follows_steps = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plimsoll-record", daemon=True)
        self._place = place_of_process()
        self._settings = self._source.settings()
        self._limits = self._source.limits()
        with ExitStack() as undo:
            self._writer = self._new_file()
            undo.callback(self.path.unlink)
            undo.callback(self._writer.close)
            buffer = _core.EventBuffer.make(_CAPACITY)
            self._source.start(buffer, stacks=self._stacks)
            undo.callback(self._forget, buffer)
            self._buffer = buffer
            segments = self._source.segments()
            try:
                self._write(start=segments)
            except OSError as error:
                raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None
            self._thread.start()
            undo.pop_all()
        # multiprocessing runs a Finalize only in the process that made it, never in a forked child.
        self._at_exit = Finalize(None, self.stop, exitpriority=2)

    def _new_file(self, earlier: Earlier | None = None) -> StreamWriter:
        settings = {**self._settings, "process": asdict(self._place)}
        if earlier is not None:
            settings["earlier"] = asdict(earlier)
        settings["limits"] = {device: [limit] for device, limit in self._limits.items()}
        return StreamWriter(self.path, self._source.frames, settings)

    def _forget(self, buffer: _core.EventBuffer) -> None:
        """Disconnects the source from the buffer, because the recording could not begin."""
        self._source.stop()
        buffer.close()
        self._buffer = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def mark(self, name: str = "step") -> None:
        """Records a mark with this name at this moment; "step" marks the end of a training step.

        Raises:
            InputError: If the recording is not running.
        """
        buffer = self._buffer
        if buffer is None:
            raise InputError(f"{self.path}: a mark was set while the recording was not on")
        buffer.mark(self._marks.number(name), time.time_ns() // 1000)

    def flush(self) -> None:
        """Writes all events so far to the file, so that other programs can read them."""
        if self._buffer is not None and not self._is_of_parent():
            self._write_or_fail()

    def stop(self) -> None:
        """Ends the recording and writes the final state of memory; further calls do nothing."""
        global _active
        with _active_lock:
            buffer = self._buffer
            if buffer is None or self._is_of_parent():
                return
            self._is_over.set()
            self._thread.join()
            with self._writing:
                self._end(buffer)
            _active = None
            self._at_exit.cancel()
        if self.dropped:
            warnings.warn(
                f"{self.path}: {format_count(self.dropped, 'event')} "
                f"{'was' if self.dropped == 1 else 'were'} lost; the writer could not keep up",
                RuntimeWarning,
                stacklevel=3,
            )

    def _end(self, buffer: _core.EventBuffer) -> None:
        if self._follows_steps:
            _uses.look()
        try:
            end = self._source.segments() if self._failure is None else None
        except Exception as error:  # for example a GPU that has failed
            self._fail(error)
        finally:
            self._source.stop()
        try:
            if self._failure is None:
                self._write(end=end, ended=True)
            self._writer.close()
        except OSError as error:
            self._fail(error)
        buffer.close()
        self._buffer = None

    def _follow_program(self) -> None:
        """Starts to mark the end of each optimizer step, and to label tensors by their use."""
        self._follows_steps = True
        _follow_program()

    def _label(self, device: int, address: int, category: str) -> None:
        buffer = self._buffer
        if buffer is not None and self._follows_steps and not self._is_of_parent():
            buffer.label(self._marks.number(category), device, address)

    def _step_is_done(self) -> None:
        if self._buffer is None or not self._follows_steps or self._is_of_parent():
            return
        with suppress(InputError):  # another thread may just have ended the recording
            self.mark()
        if self._after_step is not None:
            self._after_step()

    def _is_of_parent(self) -> bool:
        """Returns whether the recording belongs to the parent process that forked this one."""
        return self._buffer is not None and os.getpid() != self._process

    # --- writing: called by the writing thread, or by a caller of flush --------------------------

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_SECONDS) and self._failure is None:
            self._write_or_fail()

    def _write_or_fail(self) -> None:
        with self._writing:
            if self._failure is not None or self._buffer is None:
                return
            try:
                self._write()
            except Exception as error:  # an error of the writer must never stop the program
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        reason = getattr(error, "strerror", None) or error
        print(printable(f"plimsoll: the recording to {self.path} ended: {reason}"), file=sys.stderr)

    def _write(
        self, *, start: Segments | None = None, end: Segments | None = None, ended: bool = False
    ) -> None:
        devices, events = self._drain()
        if start is not None:
            devices, events = _keep(devices, events, _beside_snapshot(devices, events, after=True))
        if end is not None:
            devices, events = _keep(devices, events, _beside_snapshot(devices, events, after=False))
        if self._limit is not None:
            if start is not None:
                self._live.picture(start)
            self._live.follow(devices, events)
            if end is not None:
                end, _, _ = self._live.picture(end)
        self._put(devices, events, start=start, end=end, ended=ended)
        is_open = not ended and self._next is None
        if self._limit is not None and is_open and is_full(self._writer, self._limit):
            self._end_part()

    def _end_part(self) -> None:
        """Ends the file with a picture of memory, with which the next part will begin."""
        segments = self._source.segments()
        devices, events = self._drain()
        newer = _beside_snapshot(devices, events, after=True)
        older = _beside_snapshot(devices, events, after=False) & ~newer
        noted = devices[events.action == Action.SNAPSHOT]
        # If the buffer was full and dropped a device's `snapshot` event, a later write ends the
        # part.
        if not segments.keys() <= set(noted.tolist()):
            self._live.follow(devices, events)
            self._put(devices, events)
            return
        before, after = _keep(devices, events, older), _keep(devices, events, newer)
        self._live.follow(*before)
        picture, labels, uncertain = self._live.picture(segments)
        self._put(*before, end=picture, ended=True)
        self._writer.close()
        us = 0 if self._first_us is None else max(self._marks.clock_us - self._first_us, 0)
        earlier = Earlier(self.event_count, us / 1e6, uncertain)
        self._next = Beginning(earlier, picture, self._marks.known_labels(labels))
        self._dropped_earlier = self.dropped
        self._live.follow(*after)
        self._put(*after)

    def _begin_part(self) -> Beginning | None:
        """Makes the next part's file and returns its `Beginning`. Returns None if no part ended."""
        following, self._next = self._next, None
        if following is not None:
            self.path.replace(earlier_path(self.path))
            self._writer = self._new_file(following.earlier)
        return following

    def _drain(self) -> tuple[NDArray[np.int32], EventBatch]:
        assert self._buffer is not None
        devices, *columns = self._buffer.drain()  # `columns`: in the order of EventBatch's fields
        self.dropped = self._buffer.dropped
        return devices, EventBatch(*columns)

    def _put(
        self,
        devices: NDArray[np.int32],
        events: EventBatch,
        *,
        start: Segments | None = None,
        end: Segments | None = None,
        ended: bool = False,
    ) -> None:
        """Writes drained rows to the file.

        Args:
            devices: The device of each row.
            events: Events, marks and labels, in order.
            start: The segments before the first event of the file.
            end: The segments after the last event of the file.
            ended: Whether this is the file's last batch.
        """
        marks: list[tuple[int, int, str]] = []
        labels: list[tuple[int, int, int, str]] = []
        is_event = events.action < _core.EVENT_LABEL
        if not is_event.all():
            marks = self._marks.marks(events, is_simulated=self._source.is_simulated)
            labels = self._marks.labels(devices, events)
            devices, events = _keep(devices, events, is_event)
        if len(events):
            self._marks.clock_us = int(events.time_us[-1])
            if self._first_us is None:
                self._first_us = int(events.time_us[0])
        is_news = len(events) > 0 or bool(marks) or bool(labels)
        if is_news and (following := self._begin_part()) is not None:
            start, labels = following.segments, [*following.labels, *labels]
        if is_news or start is not None or (ended and self._next is None):
            self._writer.write(
                devices, events, marks=marks, labels=labels, start=start, end=end,
                dropped=self.dropped - self._dropped_earlier, process=self._new_place(),
                limits=self._new_limits(), ended=ended,
            )  # fmt: skip
            self.event_count += len(events)

    def _new_limits(self) -> dict[int, int | None]:
        """Returns the limits that have changed since the last write."""
        before, self._limits = self._limits, self._source.limits()
        return {
            device: limit
            for device, limit in self._limits.items()
            if device not in before or before[device] != limit
        }

    def _new_place(self) -> ProcessPlace | None:
        """Returns this process's rank and job if it has joined the job since the last write."""
        place = place_of_process()
        if place.rank is None or place == self._place:
            return None
        self._place = place
        return place


def _label(device: int, address: int, category: str) -> None:
    recorder = _active
    if recorder is not None:
        recorder._label(device, address, category)


def _after_step(_: object = None) -> None:
    recorder = _active
    if recorder is not None:
        recorder._step_is_done()


_watchers = Watchers()
_uses = TensorUses(_watchers, _label, after_step=_after_step)
_follows = False


def _follow_program() -> None:
    """Installs the hooks that report tensors and optimizer steps to the running recording.

    The hooks are never removed: a recording may end during a step, while PyTorch iterates over its
    hooks. If an earlier recording has installed the hooks, this function installs nothing, but
    reports all tensors of the program to the new recording.
    """
    global _follows
    import torch

    if _follows:
        _uses.tell_all(torch)
        return
    _uses.install(torch)
    _follows = True


def _keep(
    devices: NDArray[np.int32], events: EventBatch, rows: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], EventBatch]:
    return devices[rows], events[rows]


def _beside_snapshot(
    devices: NDArray[np.int32], events: EventBatch, *, after: bool
) -> NDArray[np.bool_]:
    """Returns a mask that selects each device's events before its newest `snapshot` event.

    With `after`, the mask selects the events after that event instead. If a device has no
    `snapshot` event, the mask selects all events of the device.
    """
    kept = np.ones(len(devices), dtype=np.bool_)
    noted = events.action == Action.SNAPSHOT
    for device in np.unique(devices[noted]):
        mine = devices == device
        newest = np.flatnonzero(mine & noted)[-1]
        dropped = slice(newest + 1) if after else slice(newest, None)
        kept[dropped] &= ~mine[dropped]
    return kept
