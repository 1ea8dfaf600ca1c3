"""The folder of libraries that were built on this machine. Only the user can write to it.

The last bytes of each file are a digest of the rest; the loader ignores them. The
digest shows whether a file is damaged, for example by a full disk or a bad sector.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNFINISHED = "building-"
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Returns the user's folder of libraries, in XDG_CACHE_HOME or else in ~/.cache.

    If this folder cannot be written to, or other users may write to it, returns a folder of this
    user inside the system's folder for temporary files.

    Raises:
        InputError: If there is no folder to which only the user can write.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    # Links are resolved once, here. So the path that is checked is also the path that is used.
    wanted = Path(base).resolve() / "plimsoll"
    problem = _prepare(wanted)
    if problem is None:
        return wanted
    instead = Path(tempfile.gettempdir()).resolve() / f"plimsoll-{os.geteuid()}"
    if _prepare(instead) is not None:
        raise InputError(f"no cache folder {wanted}: {problem}; set XDG_CACHE_HOME to your own")
    print(f"plimsoll: {wanted} is not used: {problem}; {instead} is", file=sys.stderr)
    return instead


def _prepare(folder: Path) -> str | None:
    """Makes the folder if it is missing. Returns why it cannot be used, or None."""
    try:
        for place in reversed([folder, *folder.parents]):
            if not place.is_dir():
                place.mkdir(mode=0o700, exist_ok=True)
        problem = who_else_may_write(folder)
    except OSError as error:
        return error.strerror
    if problem is None and not os.access(folder, os.W_OK):
        problem = "it cannot be written to"
    return problem


def who_else_may_write(path: Path) -> str | None:
    """Returns who, other than this user and root, may change or replace a file or folder.

    Args:
        path: An absolute path that is not a link.

    Returns:
        A line that says which path is unsafe, and why. A link on the way to the path is unsafe too.
        None if no other user can change or replace the file or folder.

    Raises:
        OSError: If the path does not exist.
    """
    for place in (path, *path.parents):
        facts = place.lstat()
        if stat.S_ISLNK(facts.st_mode):
            return f"{place} is a link"
        # Folders above may belong to root. The path itself must belong to the user.
        owners = {os.geteuid()} if place == path else {os.geteuid(), *_roots()}
        if facts.st_uid not in owners:
            return f"{place} belongs to another user"
        shared = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if shared and (place == path or not facts.st_mode & stat.S_ISVTX):
            return f"others may write to {place}"
    return None


def _roots() -> set[int]:
    """Returns the users who may own the system's folders.

    They are root, and `nobody` in a user namespace that has no root.
    """
    try:
        ranges = Path("/proc/self/uid_map").read_text().splitlines()
        has_root = any(line.split()[1] == "0" for line in ranges)
        return {0} if has_root else {0, int(Path("/proc/sys/kernel/overflowuid").read_text())}
    except (OSError, ValueError, IndexError):
        return {0}


def seal(path: Path) -> None:
    """Appends a finished file's digest to it, and lets only the user access the file."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0, os.SEEK_END)
        file.write(digest)
        os.fchmod(file.fileno(), 0o700)


def is_usable(path: Path) -> bool:
    """Returns whether a file exists, matches its digest, and is writable only by the user.

    If the file exists but cannot be used, prints why.
    """
    try:
        problem = who_else_may_write(path)
        contents = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        problem, contents = error.strerror, b""
    if problem is None and not _is_whole(contents):
        problem = "it is damaged"
    if problem is not None:
        print(f"plimsoll: {path} is not used: {problem}; it is built again", file=sys.stderr)
    return problem is None


def _is_whole(contents: bytes) -> bool:
    view = memoryview(contents)
    digest = hashlib.sha256(view[:-_DIGEST_BYTES]).digest()
    return len(contents) > _DIGEST_BYTES and view[-_DIGEST_BYTES:] == digest


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yields a new folder inside `folder` to build in, and removes it at the end.

    Only one process builds at a time. Files that a killed process left in `folder` are removed too.

    Raises:
        InputError: If the folder cannot be written to.
    """
    try:
        lock = (folder / "building.lock").open("w")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        _wait_for(lock.fileno())
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as place:
            yield Path(place)


def _wait_for(lock: int) -> None:
    import fcntl  # imported only here, because Windows has no fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("plimsoll: waiting for another process that builds", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:  # no locks on this file system: two processes may both build the library
        return
