"""Reads the source of an explanation: a file, a recording in memory, or a running process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from plimsoll.recordings.snapshot_reader import read_snapshot

if TYPE_CHECKING:
    from os import PathLike


def read_source(source: str | PathLike[str] | Recording | int) -> Recording:
    """Reads the recording to explain; a number is a process id.

    A snapshot without a history is accepted: it describes the final state alone.

    Raises:
        InputError: If the source cannot be read.
    """
    if isinstance(source, Recording):
        return source
    if isinstance(source, int):
        from plimsoll.base.telemetry.requests import request_snapshot

        return read_snapshot(request_snapshot(source), f"process {source}", needs_history=False)
    return read_recording(source, needs_history=False)


def has_history(recording: Recording) -> bool:
    """Returns whether the recording has events."""
    return any(
        bool((batch.action != Action.SNAPSHOT).any())
        for trace in recording.devices
        for batch in trace.batches()
    )
