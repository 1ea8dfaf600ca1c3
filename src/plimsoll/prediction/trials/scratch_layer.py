"""The scratch layer: a library that redirects a program's writes to a folder.

The library (`preload/` in the sources) is loaded before libc in the program's process and in its
children. These processes see their own writes in place of the real files.
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
"""The prefix by which plimsoll recognizes the symbolic links that the library itself made.

Such a link lies in the trial's folder and represents an unchanged real file. The link's target is
this prefix, followed by the real file's path.
"""


def environment(folder: Path, free: Sequence[Path], password: int | None = None) -> dict[str, str]:
    """Returns the environment variables that load the layer into a program.

    Args:
        folder: The folder to which writes are redirected. Only this user can enter it.
        free: Folders in which the program writes to the real files.
        password: The number by which the wall recognizes the layer's calls; None without a wall.

    Raises:
        InputError: If plimsoll's library for the layer is missing.
    """
    lines = [*map(str, [folder, *free]), *([] if password is None else [f"#{password:016x}"])]
    others = os.environ.get("LD_PRELOAD")
    own = str(library(folder))
    return {
        MARK: "\n".join(lines),
        "LD_PRELOAD": f"{others}:{own}" if others else own,
    }


def check_folder(folder: Path) -> None:
    """Checks that writes can be redirected to a folder.

    The scratch layer marks folders there with the set-user-ID bit.

    Raises:
        InputError: If the file system does not keep the set-user-ID bit.
    """
    tried = folder / "tried-mode"
    tried.mkdir(mode=0o700)
    tried.chmod(0o700 | stat.S_ISUID)
    is_kept = tried.stat().st_mode & stat.S_ISUID
    tried.rmdir()
    if not is_kept:
        raise InputError(
            f"{folder}: this file system keeps no set-user-ID bit, which the scratch layer needs; "
            "set TMPDIR to a folder on another file system, or keep the script's writes with "
            "--keep-writes"
        )


def is_wanted() -> bool:
    """Returns whether this process was started with a request to load the layer."""
    return _LIBRARY in os.environ.get("LD_PRELOAD", "")


def is_active() -> bool:
    """Returns whether the layer is loaded in this process and redirects its writes."""
    try:
        return bool(ctypes.CDLL(None).plimsoll_scratch_is_active())
    except AttributeError:
        return False


def library(folder: Path) -> Path:
    """Returns the library's path, or a link to it in `folder` if LD_PRELOAD cannot hold the path.

    Raises:
        InputError: If the library is missing.
    """
    core = importlib.util.find_spec("plimsoll._core")
    assert core is not None
    assert core.origin is not None
    found = Path(core.origin).with_name(_LIBRARY)
    if not found.exists():
        raise InputError(
            f"{found} is missing. plimsoll needs it to discard the script's writes: install "
            "plimsoll anew, or keep the writes with --keep-writes"
        )
    if not set(str(found)) & set(": "):
        return found
    link = folder / _LIBRARY  # LD_PRELOAD would split a path at its spaces and colons
    with suppress(FileExistsError):
        link.symlink_to(found)
    return link


def written(folder: Path) -> list[Written]:
    """Returns the files that the program wrote or removed, the largest first."""
    return largest_first([*_written_in(folder / "files", Path("/")), *_removed(folder)])


def _written_in(copy: Path, place: Path) -> Iterator[Written]:
    """Yields the files of the layer's folder `copy` that differ from the real ones in `place`."""
    try:
        entries = {entry.name: entry for entry in os.scandir(copy)}
    except FileNotFoundError:  # the program wrote nothing
        return
    for name, entry in entries.items():
        if entry.is_dir(follow_symlinks=False):
            yield from _written_in(copy / name, place / name)
        else:
            yield from _file(Path(entry.path), place / name)
    if not entries and not place.exists():
        yield Written(shown(place), 0, "new")


def _removed(folder: Path) -> Iterator[Written]:
    """Yields the real files and folders that the program removed and did not recreate."""
    try:
        noted = (folder / "removed").read_bytes()
    except FileNotFoundError:
        return
    gone: set[Path] = set()
    for name in sorted(set(noted.split(b"\0")) - {b""}):  # sorted: a folder before its entries
        place = Path(os.fsdecode(name))
        copy = folder / "files" / place.relative_to("/")
        if os.path.lexists(place) and not os.path.lexists(copy) and gone.isdisjoint(place.parents):
            gone.add(place)
            yield removed(place)


def _file(copy: Path, place: Path) -> Iterator[Written]:
    """Yields the file at `place` if its copy in the scratch layer differs from the real file."""
    target = os.readlink(copy) if copy.is_symlink() else ""  # noqa: PTH115  a Path would tidy it up
    if target == f"{_LINK}{place}":
        return
    if target.startswith(_LINK):  # the program moved an unchanged file here
        moved = removed(Path(target))
        yield Written(shown(place), moved.bytes, "new")
        return
    yield from compared(copy.lstat(), place)
