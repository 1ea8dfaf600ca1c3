"""Recordings in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.errors import InputError
from plimsoll.files import NewFile, check_ending
from plimsoll.page.exports.perfetto import write_perfetto
from plimsoll.page.exports.speedscope import write_speedscope
from plimsoll.page.exports.table import write_csv
from plimsoll.page.view import folder_of, open_recording, open_runs, plain_name
from plimsoll.recordings import write_parquet

if TYPE_CHECKING:
    from os import PathLike

    from plimsoll.recordings import Recording

EXPORTS = {
    "perfetto": ".perfetto.json",
    "speedscope": ".speedscope.json",
    "csv": ".csv",
    "parquet": ".parquet",
}
"""The kinds of exports, and how their files end."""

_WRITERS = {"perfetto": write_perfetto, "speedscope": write_speedscope, "csv": write_csv}


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
        kind: "perfetto": counters and the life of every block, for ui.perfetto.dev;
            "speedscope": what was live at the peak, by call stack; "csv": one row a block;
            "parquet": all events, as `read_recording` takes them.
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
    if output is not None:
        check_ending(output, f".{EXPORTS[kind].split('.')[-1]}", what=f"an export to {kind}")
    recording = open_recording(source)
    if output is None:
        output = folder_of(recording) / (plain_name(Path(recording.name).name) + EXPORTS[kind])
    if kind == "parquet":
        write_parquet(recording, output, force=force)
    else:
        with NewFile(output, force=force) as file:
            _WRITERS[kind](open_runs(recording)[0], file)
    return Path(output)
