"""The formats of recordings, and the endings of file names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from plimsoll.base.errors import InputError


@dataclass(frozen=True)
class Format:
    """A format of recordings.

    Attributes:
        what: The format's name for people, in the plural.
        endings: The endings of its files' names; the usual one first.
        begins: The bytes with which a file of this format may begin.
        reader: The module of `plimsoll.recordings` whose function `read` reads a file. `read` gets
            the path, the host memory that it may use, and `needs_history`: whether it must refuse a
            snapshot without a history.
        goes_by: Whether the reader can stream the events, without holding all of them in memory.
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
"""All formats of recordings. A file that begins like none of these is read as a snapshot."""
SNAPSHOTS = SNAPSHOT.endings
"""Endings of PyTorch's memory snapshots."""
TRACES = tuple(ending for each in FORMATS if each is not SNAPSHOT for ending in each.endings)
"""Endings of traces; the first is for traces that are written while a program runs."""
RECORDINGS = (*TRACES, *SNAPSHOTS)
READABLE = f"{SNAPSHOT.what} ({', '.join(SNAPSHOTS)}) and traces of plimsoll ({', '.join(TRACES)})"
"""The formats that can be read as recordings, in words."""
_FORMATS = {Path(f"name{ending}").suffix for ending in RECORDINGS} | {
    ".csv", ".htm", ".html", ".jpg", ".json", ".jsonl", ".pdf", ".png", ".pt", ".svg", ".txt",
    ".zip",
}  # fmt: skip
"""Endings that name a file format. Any other text after a dot belongs to the file's own name."""


def is_recording_name(name: str | os.PathLike[str]) -> bool:
    """Returns whether a file name has the ending of a recording, in small or capital letters."""
    return os.fspath(name).lower().endswith(RECORDINGS)


def without_ending(name: str) -> str:
    """Returns a recording's name without the ending of its format."""
    ends = (ending for ending in RECORDINGS if name.lower().endswith(ending))
    return name[: len(name) - max(map(len, ends), default=0)]


def check_ending(path: str | os.PathLike[str], *endings: str, what: str) -> None:
    """Refuses to write a file if its name has a known ending that is not allowed.

    Args:
        path: The path of the file to be written.
        endings: The allowed endings, with the dot; the usual one first.
        what: The kind of file in words, such as "a recording".

    Raises:
        InputError: If the name has the ending of a known format, and that ending is not allowed.
    """
    path = Path(path)
    if path.suffix.lower() in _FORMATS and not path.name.lower().endswith(endings):
        named = path.with_suffix(endings[0]).name
        raise InputError(f"{path}: {what} is a {' or '.join(endings)} file; name it {named}")


def check_new_recording(path: str | os.PathLike[str]) -> None:
    """Refuses to write a recording to a file whose name has the ending of another format.

    Raises:
        InputError: If the name has another format's ending.
    """
    check_ending(path, TRACES[0], what="a recording")
