"""Exports recordings to the formats of other tools.

Each format has a row in `EXPORTS`, and most have a module here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from plimsoll.base.endings import check_ending
from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.page.exports.csv import write_csv
from plimsoll.page.exports.perfetto import write_perfetto
from plimsoll.page.exports.speedscope import write_speedscope
from plimsoll.page.run import Run, open_recording, path_beside, prepare
from plimsoll.recordings.parquet import write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from plimsoll.recordings.recording import Recording


class Writer(Protocol):
    """A function that writes a recording to a file; `NewFile` explains `force`."""

    def __call__(self, recording: Recording, path: str | PathLike[str], *, force: bool) -> None:
        """Writes the recording to the file."""


@dataclass(frozen=True)
class Export:
    """A format of another tool.

    Attributes:
        ending: The ending of its files' names.
        write: The function that writes a file.
        next_step: A suggestion for the user, in which "{file}" is replaced by the file's name;
            None for no suggestion.
    """

    ending: str
    write: Writer
    next_step: str | None = None


def _of_run(write: Callable[[Run, IO[bytes]], None]) -> Writer:
    """Returns a `Writer` that prepares the recording as a `Run` and then calls `write`."""

    def write_recording(recording: Recording, path: str | PathLike[str], *, force: bool) -> None:
        with NewFile(path, force=force) as file:
            write(prepare(recording), file)

    return write_recording


EXPORTS = {
    "perfetto": Export(".perfetto.json", _of_run(write_perfetto), "open {file} in ui.perfetto.dev"),
    "speedscope": Export(
        ".speedscope.json", _of_run(write_speedscope), "open {file} in speedscope.app"
    ),
    "csv": Export(".csv", _of_run(write_csv)),
    "parquet": Export(".parquet", write_parquet, "plimsoll replay {file}"),
}
"""The export formats by name."""


def export(
    source: str | PathLike[str] | Recording,
    kind: str,
    output: str | PathLike[str] | None = None,
    *,
    force: bool = False,
) -> Path:
    """Writes a recording in the format of another tool.

    Args:
        source: A snapshot or trace file, or a `Recording`.
        kind: One of `EXPORTS`; docs/view.md describes them.
        output: The file; by default the recording's path with another ending.
        force: Whether to replace an existing file.

    Returns:
        The path of the file.

    Raises:
        InputError: If the kind is unknown or the recording cannot be read. Also if the file exists
            and `force` is false, or if the file's name has the ending of another format.
    """
    if kind not in EXPORTS:
        raise InputError(f"no such export: {kind!r}; there are {', '.join(EXPORTS)}")
    chosen = EXPORTS[kind]
    if output is not None:
        check_ending(output, f".{chosen.ending.split('.')[-1]}", what=f"an export to {kind}")
    recording = open_recording(source)
    path = path_beside([recording], chosen.ending) if output is None else Path(output)
    chosen.write(recording, path, force=force)
    return path
