"""Lists what a trial wrote, by comparing its files with the real ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plimsoll.prediction.trials.overlay import Layer

_OPAQUE = "user.overlay.opaque"


@dataclass(frozen=True)
class Written:
    """A file that the script wrote or removed in a trial. The real file is unchanged.

    Attributes:
        path: Its path; relative if it is in the current folder.
        bytes: Its size; for a removed file, the size of the real file.
        kind: "new", "changed" or "removed".
    """

    path: str
    bytes: int
    kind: str


def largest_first(found: Sequence[Written]) -> list[Written]:
    """Returns files in the order in which reports list them, the largest first."""
    return sorted(found, key=lambda one: (-one.bytes, one.path))


def changed_in(layers: Sequence[Layer], root: Path) -> list[Written]:
    """Finds the files that the script wrote or removed.

    Compares the overlays' upper folders, and the trial's root, with the real folders.
    """
    found = [one for layer in layers for one in _changed(layer.upper, layer.lower)]
    return largest_first([*found, *_new(root, Path("/"))])


def _new(folder: Path, place: Path) -> Iterator[Written]:
    """Yields the files in a folder of the trial's root that are missing in the real folder."""
    for entry in os.scandir(folder):
        real = place / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _new(Path(entry.path), real)
            if not real.exists() and not any(os.scandir(entry)):
                yield Written(shown(real), 0, "new")
        elif not os.path.lexists(real):
            yield Written(shown(real), entry.stat(follow_symlinks=False).st_size, "new")


def compared(now: os.stat_result, place: Path) -> Iterator[Written]:
    """Yields a `Written` if a file in the trial differs from the real file.

    Args:
        now: The status of the file in the trial.
        place: The path of the real file.
    """
    try:
        before = place.lstat()
    except OSError:
        yield Written(shown(place), now.st_size, "new")
        return
    if _state(before) != _state(now):
        yield Written(shown(place), now.st_size, "changed")


def removed(place: Path) -> Written:
    """Describes a real file or folder that the trial's program removed."""
    return Written(shown(place), _size(place), "removed")


def shown(place: Path) -> str:
    """Returns a path as the user would write it: relative inside the current folder."""
    here = Path.cwd()
    return str(place.relative_to(here)) if place.is_relative_to(here) else str(place)


def _changed(upper: Path, lower: Path) -> Iterator[Written]:
    entries = list(os.scandir(upper))
    if _is_opaque(upper) and lower.is_dir():
        names = {entry.name for entry in entries}
        yield from (removed(place) for place in lower.iterdir() if place.name not in names)
    for entry in entries:
        place = lower / entry.name
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            if os.path.lexists(place) and not (place.is_dir() and not place.is_symlink()):
                yield removed(place)
            yield from _changed(Path(entry.path), place)
        elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            if os.path.lexists(place):
                yield removed(place)
        else:
            yield from compared(status, place)
    if not entries and not lower.exists():
        yield Written(shown(lower), 0, "new")


def _is_opaque(folder: Path) -> bool:
    with suppress(OSError):
        return os.getxattr(folder, _OPAQUE) == b"y"
    return False


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Returns the properties by which `compared` tells whether a file was changed."""
    return (status.st_mode, status.st_size, status.st_mtime_ns)


def _size(path: Path) -> int:
    """Returns the size of a file, or of all files in a folder; inaccessible files count as 0."""
    if path.is_dir() and not path.is_symlink():
        return sum(_size(Path(folder) / name) for folder, _, names in os.walk(path)
                   for name in names)  # fmt: skip
    try:
        return path.lstat().st_size
    except OSError:
        return 0
