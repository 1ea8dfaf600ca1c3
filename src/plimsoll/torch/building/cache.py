"""The folder of libraries that were built here, to which only the user can write.

A file's last bytes, which the loader ignores, contain the digest of its contents. A file that a
full disk or a bad sector has damaged is therefore recognized.
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
    """Returns the folder of this user's libraries, in XDG_CACHE_HOME, or else in ~/.cache.

    If other users could write there, or the user cannot, it is a folder of the user's own in the
    system's folder for temporary files.

    Raises:
        InputError: If there is no folder to which only the user can write.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    # Links are resolved here and never again, so the checked path is the path that is used.
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
    """Makes a folder if there is none; returns the reason why it cannot be used."""
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
    """Finds users, besides this one and root, who may change or replace a file or folder.

    Args:
        path: Absolute, and not a link.

    Returns:
        One line with the user and the path, or None if there is none.

    Raises:
        OSError: If the path does not exist.
    """
    for place in (path, *path.parents):
        facts = place.lstat()
        if stat.S_ISLNK(facts.st_mode):
            return f"{place} is a link"
        # Root owns folders above all others; a library must belong to the user.
        owners = {os.geteuid()} if place == path else {os.geteuid(), *_roots()}
        if facts.st_uid not in owners:
            return f"{place} belongs to another user"
        shared = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if shared and (place == path or not facts.st_mode & stat.S_ISVTX):
            return f"others may write to {place}"
    return None


def _roots() -> set[int]:
    """Returns the owners of the system's folders: root, or `nobody` in a rootless namespace."""
    try:
        ranges = Path("/proc/self/uid_map").read_text().splitlines()
        has_root = any(line.split()[1] == "0" for line in ranges)
        return {0} if has_root else {0, int(Path("/proc/sys/kernel/overflowuid").read_text())}
    except (OSError, ValueError, IndexError):
        return {0}


def seal(path: Path) -> None:
    """Appends the digest to a finished file, which only the user may change from now on."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0, os.SEEK_END)
        file.write(digest)
        os.fchmod(file.fileno(), 0o700)


def is_usable(path: Path) -> bool:
    """Returns whether a sealed file exists, undamaged and the user's own; if not, prints why."""
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
    """Yields a folder to build in, and removes it afterwards; other builders wait meanwhile.

    It also removes files that a killed process left there.

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
    import fcntl  # missing on some systems that import this file

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("plimsoll: waiting for another process that builds", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: at worst it is built twice
        return
