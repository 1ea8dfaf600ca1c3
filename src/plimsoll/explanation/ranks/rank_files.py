"""Lists the recordings in a local folder or an object store, and reads ranks from their names."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from plimsoll.base.endings import RECORDINGS, is_recording_name, without_ending
from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMOTE = ("s3://", "gs://", "gcs://")
_PIECE = 1 << 22
_RANK = re.compile(r"rank[^0-9A-Za-z]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_RESTART = re.compile(
    r"(?P<first>.*\.rank[0-9]+)-(?P<start>[2-9]|[1-9][0-9]{1,8})(?P<ending>\.plim)", re.DOTALL
)
_EARLIER = ".earlier.plim"
_MOST_DIGITS = 9


@dataclass(frozen=True)
class RankFile:
    """A recording.

    Attributes:
        name: Its path, or its address in an object store.
        folder: The address of the folder in an object store; None for a local file.
        size: The size in bytes.
    """

    name: str
    folder: str | None
    size: int

    @contextmanager
    def here(self) -> Iterator[Path]:
        """Yields a local path of the recording.

        A recording in an object store is downloaded. The copy is deleted after the `with` block.
        """
        if self.folder is None:
            yield Path(self.name)
            return
        store, _ = _store(self.folder)
        with TemporaryDirectory(prefix="plimsoll-") as folder:
            path = Path(folder) / self.name.rpartition("/")[2]
            try:
                with store.open_input_stream(_path_in(self.name)) as source, path.open("wb") as to:
                    while piece := source.read(_PIECE):
                        to.write(piece)
            except OSError as error:
                raise InputError(f"{self.name}: cannot be fetched: {_first_line(error)}") from None
            yield path


def is_folder(source: str) -> bool:
    """Returns whether the source is a folder, or may be a folder in an object store."""
    return is_remote(source) or Path(source).is_dir()


def is_remote(source: str) -> bool:
    """Returns whether the source is an address in an object store."""
    return source.startswith(_REMOTE)


def recordings_in(folder: str) -> list[RankFile]:
    """Returns all recordings of a folder and its subfolders, sorted by name.

    If a size limit split a recording into two files, the list contains only the newer file.

    Raises:
        InputError: If there are no recordings, or the folder cannot be read.
    """
    found = _remote_files(folder) if is_remote(folder) else _local_files(Path(folder))
    if not found:
        raise InputError(
            f"{folder}: there is no recording in it; recordings end in {', '.join(RECORDINGS)}"
        )
    names = {file.name for file in found}
    newest = [file for file in found if _later_part(file.name) not in names]
    return sorted(newest, key=lambda file: _natural(file.name))


def _later_part(name: str) -> str | None:
    """Returns the name of a recording's newer file, if `name` is the name of the earlier file."""
    return f"{name.removesuffix(_EARLIER)}.plim" if name.endswith(_EARLIER) else None


def rank_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern that finds the rank in a path: in the group `rank`, or in the only group.

    Raises:
        InputError: If the pattern is invalid or has no such group.
    """
    try:
        made = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--rank-pattern {pattern!r} is no regular expression: {error}") from None
    if made.groups != 1 and "rank" not in made.groupindex:
        raise InputError(
            f"--rank-pattern {pattern!r} has to say where the rank is: in one group, such as "
            r"'worker(\d+)', or in one of that name, '(?P<rank>\d+)'"
        )
    return made


def rank_in_name(name: str, pattern: re.Pattern[str] | None) -> int | None:
    """Returns the rank in a file's path; None if there is none.

    Without a pattern this is the number after the last "rank" in the path, or else the last number
    in the file's name.
    """
    if pattern is not None:
        found = pattern.search(name)
        text = found["rank" if "rank" in pattern.groupindex else 1] if found else None
    else:
        ranks = _RANK.findall(name)
        numbers = _NUMBER.findall(without_ending(re.split(r"[/\\]", name)[-1]))
        text = ranks[-1] if ranks else numbers[-1] if numbers else None
    is_number = text is not None and text.isascii() and text.isdecimal()
    return int(text) if text is not None and is_number and len(text) <= _MOST_DIGITS else None


def restart_in_name(name: str) -> tuple[str, int]:
    """Returns the path of the rank's first recording, and which start of the rank wrote `name`.

    A rank that the launcher starts again writes `run.rank0-2.plim` beside `run.rank0.plim`.

    >>> restart_in_name("run.rank0-2.plim")
    ('run.rank0.plim', 2)
    >>> restart_in_name("run.rank0.plim")
    ('run.rank0.plim', 1)
    """
    found = _RESTART.fullmatch(name)
    return (found["first"] + found["ending"], int(found["start"])) if found else (name, 1)


def host_in_name(name: str, pattern: re.Pattern[str] | None) -> str | None:
    """Returns the host in a path, if the pattern has a group named `host`."""
    if pattern is None or "host" not in pattern.groupindex:
        return None
    found = pattern.search(name)
    return found["host"] if found else None


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Returns a sort key that orders names by the numbers in them."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def _local_files(folder: Path) -> list[RankFile]:
    paths = (
        Path(inside) / name
        for inside, _, names in os.walk(folder)
        for name in names
        if is_recording_name(name)
    )
    return [RankFile(str(path), None, path.stat().st_size) for path in paths if path.is_file()]


def _remote_files(folder: str) -> list[RankFile]:
    store, path = _store(folder)
    try:
        known = store.get_file_info(fs.FileSelector(path, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{folder}: cannot be listed: {_first_line(error)}") from None
    scheme = folder.partition("://")[0]
    return [
        RankFile(f"{scheme}://{one.path}", folder, one.size or 0)
        for one in known
        if one.type == fs.FileType.File and is_recording_name(one.path)
    ]


def _store(folder: str) -> tuple[fs.FileSystem, str]:
    try:
        store, path = fs.FileSystem.from_uri(folder)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{folder}: {_first_line(error)}") from None
    return store, path


def _path_in(address: str) -> str:
    return address.partition("://")[2]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
