"""The scratch layer of a trial: what its script writes is kept apart, and thrown away after it.

The library that does it, `preload/` in the sources, stands before libc in the script's process and
in those that this starts. It keeps what they write in a folder, and they see it in its place.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.prediction.offline import offline
from plimsoll.prediction.parts import Written
from plimsoll.telemetry.folder import folders
from plimsoll.torch.simulated.compiled.settings import compiled_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBRARY = "libplimsoll_scratch.so"
_FOLDER = "PLIMSOLL_SCRATCH"
_TEMPORARY = "temporary"
_MARK = "/.//."
"""A link of the layer begins with it; what follows is the path of what has not changed."""


def scratch_environment(folder: Path) -> dict[str, str]:
    """What the process of a trial has in its environment besides what this one has.

    Args:
        folder: A folder of this user's alone, which is to hold the layer.

    Raises:
        InputError: If there is no library that keeps writes apart.
    """
    library = _library(folder)
    temporary = folder / _TEMPORARY
    temporary.mkdir(mode=0o700)
    temporary.chmod(0o700 | stat.S_ISUID)  # which is how the layer marks folders
    if not temporary.stat().st_mode & stat.S_ISUID:
        raise InputError(
            f"{folder}: this file system keeps no set-user-ID bit, which the scratch layer needs; "
            "set TMPDIR to a folder of another, or let the script's writes stay, with --keep-writes"
        )
    temporary.chmod(0o700)
    others = os.environ.get("LD_PRELOAD")
    return {
        **offline(os.environ),
        _FOLDER: "\n".join(map(str, [folder, *folders(), compiled_folder()])),
        "LD_PRELOAD": f"{others}:{library}" if others else str(library),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def enter_scratch(folder: str) -> None:
    """In the process of a trial, before its script: see that the layer is there.

    From here on temporary files lie in it, too: beside the layer, for they are in nobody's way.

    Raises:
        InputError: If this process would write to real files.
    """
    try:
        is_active = bool(ctypes.CDLL(None).plimsoll_scratch_is_active())
    except AttributeError:
        is_active = False
    if not is_active:
        raise InputError(
            "what the script writes cannot be kept apart here, for this Python takes no "
            "LD_PRELOAD; --keep-writes runs it so that its writes stay"
        )
    os.environ["TMPDIR"] = tempfile.tempdir = str(Path(folder) / _TEMPORARY)


def written(folder: Path) -> list[Written]:
    """What a trial wrote, the largest first; temporary files are left out.

    Paths are relative where they are in the current folder.
    """
    found = [*_written_in(folder / "files", Path("/")), *_removed(folder)]
    return sorted(found, key=lambda one: (-one.bytes, one.path))


def _library(folder: Path) -> Path:
    library = Path(_core.__file__).with_name(_LIBRARY)
    if not library.exists():
        raise InputError(
            f"{library} is missing, which keeps apart what a script writes; install plimsoll "
            "anew, or let the script's writes stay, with --keep-writes"
        )
    if not set(str(library)) & set(": "):
        return library
    link = folder / _LIBRARY  # the loader takes these two for the end of a name
    link.symlink_to(library)
    return link


def _written_in(copy: Path, place: Path) -> Iterator[Written]:
    """What differs from the real folder at `place`, which a folder of the layer stands for."""
    try:
        entries = {entry.name: entry for entry in os.scandir(copy)}
    except FileNotFoundError:  # nothing was written
        return
    for name, entry in entries.items():
        if entry.is_dir(follow_symlinks=False):
            yield from _written_in(copy / name, place / name)
        else:
            yield from _file(Path(entry.path), place / name)
    if not entries and not place.exists():
        yield Written(_shown(place), 0, "new")


def _removed(folder: Path) -> Iterator[Written]:
    """The real files and folders that were removed, and not made again."""
    try:
        noted = (folder / "removed").read_bytes()
    except FileNotFoundError:
        return
    gone: set[Path] = set()
    for name in sorted(set(noted.split(b"\0")) - {b""}):  # a folder before what was in it
        place = Path(os.fsdecode(name))
        copy = folder / "files" / place.relative_to("/")
        if os.path.lexists(place) and not os.path.lexists(copy) and gone.isdisjoint(place.parents):
            gone.add(place)
            yield Written(_shown(place), _size(place), "removed")


def _file(copy: Path, place: Path) -> Iterator[Written]:
    """What a file of the layer is to the real one at its place."""
    target = os.readlink(copy) if copy.is_symlink() else ""  # noqa: PTH115  a Path would tidy it up
    if target == f"{_MARK}{place}":
        return
    if target.startswith(_MARK):  # it was moved here, as it is
        yield Written(_shown(place), _size(Path(target)), "new")
        return
    now = copy.lstat()
    try:
        before = place.lstat()
    except OSError:
        yield Written(_shown(place), now.st_size, "new")
        return
    if _state(before) != _state(now):
        yield Written(_shown(place), now.st_size, "changed")


def _state(status: os.stat_result) -> tuple[int, ...]:
    """What differs when a file was changed: a copy begins with the real one's."""
    return (status.st_mode, status.st_size, status.st_mtime_ns)


def _size(path: Path) -> int:
    """Of a file, or of all files in a folder, as far as they can be seen."""
    if path.is_dir() and not path.is_symlink():
        return sum(_size(Path(folder) / name) for folder, _, names in os.walk(path)
                   for name in names)  # fmt: skip
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _shown(place: Path) -> str:
    here = Path.cwd()
    return str(place.relative_to(here)) if place.is_relative_to(here) else str(place)
