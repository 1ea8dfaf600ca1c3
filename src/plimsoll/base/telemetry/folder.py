"""Where the processes of a user tell about themselves: a folder that nobody else can enter.

Each has two files there, PID-NAMESPACE.counters and PID-NAMESPACE.socket: containers that share the
folder give the same numbers, so the name says whose number it is. A login session, a service and a
container do not have the same environment, so readers look in every place that a writer may have
chosen.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.identity import pid_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"([0-9]{1,10})-([0-9]{1,20})\.(counters|socket)")


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
    """The counters of a process, by its number here."""
    return folder / f"{pid}-{pid_namespace()}.counters"


def socket_path(folder: Path, pid: int) -> Path:
    """Where a process answers, by its number here."""
    return folder / f"{pid}-{pid_namespace()}.socket"


def published(folder: Path) -> Iterator[int]:
    """The processes that have files in a folder, by number; none if it is not private.

    Those of other containers are left out: nobody here can say whether they run.
    """
    if not is_private(folder):
        return
    here = str(pid_namespace())
    names = [_NAME.fullmatch(path.name) for path in folder.iterdir()]
    yield from sorted({int(name[1]) for name in names if name is not None and name[2] == here})


def remove(folder: Path, pid: int) -> None:
    """Remove what a process left there, if that can be."""
    for path in (counters_path(folder, pid), socket_path(folder, pid)):
        with suppress(OSError):
            path.unlink()
