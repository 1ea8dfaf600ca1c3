"""Reads recordings from untrusted files; `endings.FORMATS` names the reader of each format."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.base.endings import FORMATS, SNAPSHOT, is_recording_name
from plimsoll.base.errors import InputError
from plimsoll.recordings.checks import reading_memory, too_large

if TYPE_CHECKING:
    from os import PathLike

    from plimsoll.recordings.recording import Recording

_LONGEST = max(len(begin) for each in FORMATS for begin in each.begins)


def read_recording(
    path: str | PathLike[str],
    *,
    needs_history: bool = True,
    memory: int | str | None = None,
    goes_by: bool = False,
) -> Recording:
    """Reads a recording; `endings.py` lists the formats.

    The file's first bytes decide its format; its name has no effect. Time and memory are linear in
    the uncompressed contents. A signal such as Ctrl-C ends the reading.

    >>> plimsoll.read_recording("run.pickle").devices[0].load()  # doctest: +SKIP

    Args:
        path: The path of the file.
        needs_history: Whether a snapshot without a history is refused; see `read_snapshot`.
        memory: The limit for the memory of the uncompressed contents and of the values made from
            them: a number of bytes, or a text such as "8GiB". The default is 1 GiB, or eight times
            the file's size if that is more. The process may take up to about twice this limit.
        goes_by: Whether the caller takes the events of a trace one batch at a time and never holds
            them together. The default of `memory` is then 256 times the file's size.

    Raises:
        InputError: If the file cannot be read, or has no history; the message says why.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            begin = file.peek(_LONGEST)[:_LONGEST]
            size = os.fstat(file.fileno()).st_size
        if not begin:
            raise InputError(f"{path}: the file is empty")
        found = next((each for each in FORMATS if begin.startswith(each.begins)), SNAPSHOT)
        most = reading_memory(size, memory, goes_by=goes_by and found.goes_by)
        read = import_module(f"{__package__}.{found.reader}").read
        recording: Recording = read(path, most, needs_history=needs_history)
        return recording
    except _core.ReadingLimitError:
        raise too_large(path, most) from None
    except MemoryError:
        raise InputError(f"{path}: there is not enough memory to read it") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, not a snapshot") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def is_recording(path: str | PathLike[str]) -> bool:
    """Returns whether a file is a recording, by the ending of its name or by its first bytes."""
    if is_recording_name(path):
        return True
    try:
        with Path(path).open("rb") as file:
            begin = file.read(_LONGEST)
        return any(begin.startswith(each.begins) for each in FORMATS)
    except OSError:  # the error is reported when the file is opened later
        return False
