"""Where the processes of a user tell about themselves: a folder that nobody else can enter.

Each has two files there, PID.counters and PID.socket. A login session, a service and a container
do not have the same environment, so readers look in every place that a writer may have chosen.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


def folders() -> list[Path]:
    """Where to look and to write, best first; they need not exist."""
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    found = [Path(runtime) / "plimsoll"] if Path(runtime).is_absolute() else []
    found += [Path(f"/run/user/{user}/plimsoll"), Path(f"/tmp/plimsoll-{user}")]  # noqa: S108
    return list(dict.fromkeys(found))


def is_private(folder: Path) -> bool:
    """Whether it is a folder of this user that no other can enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and found.st_mode & 0o077 == 0


def private_folder() -> Path:
    """The first of `folders` that can be had, made if it is not there.

    Raises:
        InputError: If none can.
    """
    for folder in folders():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        if is_private(folder):
            return folder
    raise InputError(f"no folder for counters: none of {', '.join(map(str, folders()))} is private")


def counters_path(folder: Path, pid: int) -> Path:
    """The counters of a process."""
    return folder / f"{pid}.counters"


def socket_path(folder: Path, pid: int) -> Path:
    """Where a process answers."""
    return folder / f"{pid}.socket"


def published(folder: Path) -> Iterator[tuple[int, Path]]:
    """The processes that have counters in a folder, by number; none if it is not private."""
    if not is_private(folder):
        return
    for path in sorted(folder.glob("*.counters")):
        if path.stem.isdecimal() and path.stem.isascii() and len(path.stem) <= 10:
            yield int(path.stem), path


def remove(folder: Path, pid: int) -> None:
    """Remove what a process left there, if that can be."""
    for path in (counters_path(folder, pid), socket_path(folder, pid)):
        with suppress(OSError):
            path.unlink()
