"""A recording, prepared to be shown."""

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
    """A recording and what there is to show of each of its devices."""

    name: str
    devices: Sequence[DeviceView]

    @property
    def title(self) -> str:
        """Its name, as it can be shown."""
        return printable(self.name)


def prepare(recording: Recording) -> Run:
    """Prepare a recording to be shown.

    Raises:
        InputError: If one of its devices holds nothing that can be shown.
    """
    devices = [make_device_view(recording, trace) for trace in recording.devices]
    return Run(Path(recording.name).name, devices)


def open_recording(source: str | PathLike[str] | Recording) -> Recording:
    """Read a file, unless it is read already.

    Raises:
        InputError: If it cannot be read.
    """
    return source if isinstance(source, Recording) else read_recording(source)


def path_beside(recordings: Sequence[Recording], ending: str) -> Path:
    """Where something made of recordings goes by default: beside the first, under their names.

    What is of no file goes into this folder.
    """
    names = "-and-".join(without_ending(Path(one.name).name) for one in recordings)
    path = Path(recordings[0].name)
    return (path.parent if path.is_file() else Path()) / (names + ending)
