"""The scratch layer: a library before libc that keeps what a program writes in a folder.

The library, `preload/` in the sources, stands before libc in the program's process and in those
that this starts; they see what they wrote in its place.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from plimsoll.base.errors import InputError
from plimsoll.prediction.trials.program_processes import MARK
from plimsoll.prediction.trials.written import Written, compared, largest_first, removed, shown

_LIBRARY = "libplimsoll_scratch.so"
_LINK = "/.//."
"""A link of the layer begins with it; what follows is the path of what has not changed."""


def environment(folder: Path, free: Sequence[Path], password: int | None = None) -> dict[str, str]:
    """Make the variables that a program needs for the layer.

    Args:
        folder: A folder of this user's alone, which is to hold the layer.
        free: Folders that are left alone.
        password: The number by which the wall knows the layer's calls; None without a wall.

    Raises:
        InputError: If there is no library that keeps writes apart.
    """
    lines = [*map(str, [folder, *free]), *([] if password is None else [f"#{password:016x}"])]
    others = os.environ.get("LD_PRELOAD")
    own = str(library(folder))
    return {
        MARK: "\n".join(lines),
        "LD_PRELOAD": f"{others}:{own}" if others else own,
    }


def check_folder(folder: Path) -> None:
    """See that a folder can hold the layer, which marks its folders by a bit of their mode.

    Raises:
        InputError: If not.
    """
    tried = folder / "tried-mode"
    tried.mkdir(mode=0o700)
    tried.chmod(0o700 | stat.S_ISUID)
    is_kept = tried.stat().st_mode & stat.S_ISUID
    tried.rmdir()
    if not is_kept:
        raise InputError(
            f"{folder}: this file system keeps no set-user-ID bit, which the scratch layer needs; "
            "set TMPDIR to a folder of another, or let the script's writes stay, with --keep-writes"
        )


def is_wanted() -> bool:
    """Whether this process was started so that it has the layer."""
    return _LIBRARY in os.environ.get("LD_PRELOAD", "")


def is_active() -> bool:
    """Whether this process has the layer."""
    try:
        return bool(ctypes.CDLL(None).plimsoll_scratch_is_active())
    except AttributeError:
        return False


def library(folder: Path) -> Path:
    """The library; by a link in `folder` where its own path has what the loader cannot read.

    Raises:
        InputError: If it is missing.
    """
    core = importlib.util.find_spec("plimsoll._core")
    assert core is not None
    assert core.origin is not None
    found = Path(core.origin).with_name(_LIBRARY)
    if not found.exists():
        raise InputError(
            f"{found} is missing, which keeps apart what a script writes; install plimsoll "
            "anew, or let the script's writes stay, with --keep-writes"
        )
    if not set(str(found)) & set(": "):
        return found
    link = folder / _LIBRARY  # the loader takes these two for the end of a name
    with suppress(FileExistsError):
        link.symlink_to(found)
    return link


def written(folder: Path) -> list[Written]:
    """List what was written, the largest first."""
    return largest_first([*_written_in(folder / "files", Path("/")), *_removed(folder)])


def _written_in(copy: Path, place: Path) -> Iterator[Written]:
    """Compare a folder of the layer with the real one at `place`."""
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
        yield Written(shown(place), 0, "new")


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
            yield removed(place)


def _file(copy: Path, place: Path) -> Iterator[Written]:
    """Compare a file of the layer with the real one at `place`."""
    target = os.readlink(copy) if copy.is_symlink() else ""  # noqa: PTH115  a Path would tidy it up
    if target == f"{_LINK}{place}":
        return
    if target.startswith(_LINK):  # it was moved here, as it is
        moved = removed(Path(target))
        yield Written(shown(place), moved.bytes, "new")
        return
    yield from compared(copy.lstat(), place)
