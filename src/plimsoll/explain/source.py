"""What can be explained: a file, a recording that was read, a running process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.trace import EventBatch, Recording, read_recording
from plimsoll.trace.events import COLUMNS, Action
from plimsoll.trace.files import read_snapshot
from plimsoll.trace.recording import LoadedTrace

if TYPE_CHECKING:
    from os import PathLike


def read_source(source: str | PathLike[str] | Recording | int) -> Recording:
    """Read what is to be explained; a number is that of a running process.

    Raises:
        InputError: If it cannot be read.
    """
    if isinstance(source, Recording):
        return source
    if isinstance(source, int):
        from plimsoll.process.snapshot import request_snapshot

        return read_state(request_snapshot(source), f"process {source}")
    return read_recording(source)


def read_state(content: bytes, name: str) -> Recording:
    """Read a snapshot, also one without a history: it then is a history in which nothing happens.

    Raises:
        InputError: If it is not one, or there is nothing in it.
    """
    try:
        return read_snapshot(content, name)
    except InputError:
        try:
            file = _core.SnapshotFile(content)
        except (_core.PickleError, _core.RecordingError):
            file = None
        if file is None or not any(file.segments(i) for i in range(file.device_count)):
            raise
    return Recording(
        name=name,
        devices=[
            LoadedTrace(device, _one_snapshot(), file.segments(device), file)
            for device in range(file.device_count)
            if file.segments(device)
        ],
        settings=file.settings if isinstance(file.settings, dict) else {},
    )


def has_history(recording: Recording) -> bool:
    """Whether anything happens in it."""
    return any(
        bool((batch.action != Action.SNAPSHOT).any())
        for trace in recording.devices
        for batch in trace.batches()
    )


def _one_snapshot() -> EventBatch:
    columns = {name: np.zeros(1, dtype=dtype) for name, dtype in COLUMNS.items()}
    columns["action"][:] = Action.SNAPSHOT
    return EventBatch.of(columns)
