"""The private folder in which a user's processes publish their counters.

Each process has two files there, PID-NAMESPACE.counters and PID-NAMESPACE.socket. Containers that
share the folder may use the same process ids, so the name includes the PID namespace. A login
session, a service and a container have different environments, so readers look in every folder that
a writer may have chosen.
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
    """Returns the folders that may hold counters, in the order in which a writer tries them.

    The folders need not exist.
    """
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    found = [Path(runtime) / "plimsoll"] if Path(runtime).is_absolute() else []
    found += [Path(f"/run/user/{user}/plimsoll"), Path(f"/tmp/plimsoll-{user}")]  # noqa: S108
    return list(dict.fromkeys(found))


def is_private(folder: Path) -> bool:
    """Returns whether the folder belongs to this user and no other user can enter it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and found.st_mode & 0o077 == 0


def private_folder() -> Path:
    """Returns the first of `folders` that this user can use. Makes it if it does not exist.

    Raises:
        InputError: If no folder can be used.
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
    """Returns the path of a process's counters; `pid` is its id in this PID namespace."""
    return folder / f"{pid}-{pid_namespace()}.counters"


def socket_path(folder: Path, pid: int) -> Path:
    """Returns the path of a process's socket; `pid` is its id in this PID namespace."""
    return folder / f"{pid}-{pid_namespace()}.socket"


def published(folder: Path) -> Iterator[int]:
    """Yields the ids of the processes with files in a folder; none if the folder is not private.

    Processes of other containers are left out, as this process cannot tell whether they still run.
    """
    if not is_private(folder):
        return
    here = str(pid_namespace())
    names = [_NAME.fullmatch(path.name) for path in folder.iterdir()]
    yield from sorted({int(name[1]) for name in names if name is not None and name[2] == here})


def remove(folder: Path, pid: int) -> None:
    """Deletes a process's files, if possible."""
    for path in (counters_path(folder, pid), socket_path(folder, pid)):
        with suppress(OSError):
            path.unlink()
