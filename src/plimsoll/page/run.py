"""Prepares a recording for the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.endings import without_ending
from plimsoll.base.printable import printable
from plimsoll.page.device_view import DeviceView, make_device_view
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike


@dataclass(frozen=True)
class Run:
    """A recording, prepared for the page: its name and the views of its devices."""

    name: str
    devices: Sequence[DeviceView]

    @property
    def title(self) -> str:
        """The run's name, made printable."""
        return printable(self.name)


def prepare(recording: Recording) -> Run:
    """Prepares a recording for the page.

    Raises:
        InputError: If one of its devices has nothing to show.
    """
    devices = [make_device_view(recording, trace) for trace in recording.devices]
    return Run(Path(recording.name).name, devices)


def open_recording(source: str | PathLike[str] | Recording) -> Recording:
    """Reads a recording from a file. If the argument is a `Recording`, returns it.

    Raises:
        InputError: If the file cannot be read.
    """
    return source if isinstance(source, Recording) else read_recording(source)


def path_beside(recordings: Sequence[Recording], ending: str) -> Path:
    """Returns the default path of an output: a file beside the first recording.

    The file's name joins the names of all recordings. If the first recording was not read from a
    file, the output is in the current folder.
    """
    names = "-and-".join(without_ending(Path(one.name).name) for one in recordings)
    path = Path(recordings[0].name)
    return (path.parent if path.is_file() else Path()) / (names + ending)
