"""Recordings in the formats of other tools: a module each, and a row in `EXPORTS`."""

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
    """Writes a recording to a file; see `NewFile` for `force`."""

    def __call__(self, recording: Recording, path: str | PathLike[str], *, force: bool) -> None:
        """Write it."""


@dataclass(frozen=True)
class Export:
    """A format of another tool.

    Attributes:
        ending: How its files end.
        write: What writes one.
        next_step: What to do with a file, "{file}" standing for it; None for nothing special.
    """

    ending: str
    write: Writer
    next_step: str | None = None


def _of_run(write: Callable[[Run, IO[bytes]], None]) -> Writer:
    """A writer that takes recordings, of one that takes what the page shows of them."""

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
"""The kinds of exports."""


def export(
    source: str | PathLike[str] | Recording,
    kind: str,
    output: str | PathLike[str] | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write a recording in the format of another tool.

    Args:
        source: A snapshot, a trace, or a `Recording`.
        kind: One of `EXPORTS`; docs/view.md says what each has.
        output: The file; by default it lies beside the recording and has its name.
        force: Replace a file of that name.

    Returns:
        The file.

    Raises:
        InputError: If there is no such kind, the recording cannot be read, or the file exists or is
            to have a name of something else.
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
