"""The formats of recordings, and how the names of other files end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from plimsoll.base.errors import InputError


@dataclass(frozen=True)
class Format:
    """A format of recordings.

    Attributes:
        what: Files of it, in words.
        endings: How their names end; the usual one first.
        begins: How their contents begin.
        reader: The module of `plimsoll.recordings` whose function `read` reads a file. It takes the
            path, the bytes that reading may take, and `needs_history`.
        goes_by: Whether a reader can go through the events without holding all of them in memory.
    """

    what: str
    endings: tuple[str, ...]
    begins: tuple[bytes, ...]
    reader: str
    goes_by: bool = True


SNAPSHOT = Format(
    "snapshots of PyTorch",
    (".pickle", ".pickle.gz", ".pkl", ".pkl.gz"),
    (b"\x80", b"\x1f\x8b"),
    "snapshot_reader",
    goes_by=False,
)
FORMATS = (
    SNAPSHOT,
    Format("traces of plimsoll", (".plim",), (b"\xff\xff\xff\xff",), "stream_reader"),
    Format("traces of plimsoll", (".parquet",), (b"PAR1",), "parquet"),
)
"""All formats of recordings. A file that begins as none of them is read as a snapshot."""
SNAPSHOTS = SNAPSHOT.endings
"""Endings of PyTorch's memory snapshots."""
TRACES = tuple(ending for each in FORMATS if each is not SNAPSHOT for ending in each.endings)
"""Endings of traces; the first is that of a trace written while a program runs."""
RECORDINGS = (*TRACES, *SNAPSHOTS)
READABLE = f"{SNAPSHOT.what} ({', '.join(SNAPSHOTS)}) and traces of plimsoll ({', '.join(TRACES)})"
"""All files that can be read as recordings, in words."""
_FORMATS = {Path(f"name{ending}").suffix for ending in RECORDINGS} | {
    ".csv", ".htm", ".html", ".jpg", ".json", ".jsonl", ".pdf", ".png", ".pt", ".svg", ".txt",
    ".zip",
}  # fmt: skip
"""Endings that name a format. Any other text after a dot belongs to the name."""


def is_recording_name(name: str | os.PathLike[str]) -> bool:
    """Whether a name ends as a recording's, in capitals or not."""
    return os.fspath(name).lower().endswith(RECORDINGS)


def without_ending(name: str) -> str:
    """A recording's name without the ending that says its format."""
    ends = (ending for ending in RECORDINGS if name.lower().endswith(ending))
    return name[: len(name) - max(map(len, ends), default=0)]


def check_ending(path: str | os.PathLike[str], *endings: str, what: str) -> None:
    """Refuse a name whose ending belongs to another format than the one to be written.

    Args:
        path: The path of the file to be written.
        endings: How its name may end, with the dot; the usual one first.
        what: The kind of its contents.

    Raises:
        InputError: If the name has another ending.
    """
    path = Path(path)
    if path.suffix.lower() in _FORMATS and not path.name.lower().endswith(endings):
        named = path.with_suffix(endings[0]).name
        raise InputError(f"{path}: {what} is a {' or '.join(endings)} file; name it {named}")


def check_new_recording(path: str | os.PathLike[str]) -> None:
    """Refuse a name for a new recording whose ending belongs to another format.

    Raises:
        InputError: As for `check_ending`.
    """
    check_ending(path, TRACES[0], what="a recording")
