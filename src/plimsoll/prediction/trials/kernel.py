"""System calls of Linux for which Python has no function."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
NEW_USERS = 0x10000000  # CLONE_NEWUSER
NEW_NETWORK = 0x40000000  # CLONE_NEWNET

BIND = 0x1000  # MS_BIND
WITH_ALL_BELOW = 0x4000  # MS_REC
PRIVATE = 0x40000  # MS_PRIVATE

_DETACH = 2  # MNT_DETACH
_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _made(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)


def unshare(kinds: int) -> None:
    """Gives this process namespaces of its own.

    Raises:
        OSError: If the kernel or its configuration denies this to the user.
    """
    _made(_libc.unshare(kinds), "unshare")


def mount(source: str, place: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mounts a file system; the arguments are those of the system call.

    Raises:
        OSError: If the kernel refuses it.
    """
    name = None if kind is None else kind.encode()
    target = os.fsencode(place)
    result = _libc.mount(os.fsencode(source), target, name, ctypes.c_ulong(flags),
                         os.fsencode(options))  # fmt: skip
    _made(result, str(place))


def unmount(place: Path) -> None:
    """Unmounts a file system with all mounts below it, even if it is in use.

    Raises:
        OSError: If the kernel refuses it.
    """
    _made(_libc.umount2(os.fsencode(place), _DETACH), str(place))


def make_read_only(place: Path) -> None:
    """Makes a mount and all mounts below it read-only.

    Raises:
        OSError: If the kernel refuses it.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(place), _AT_RECURSIVE,
                           attributes, len(attributes))  # fmt: skip
    _made(result, str(place))


def change_root(place: Path) -> None:
    """Makes a mount the root of this mount namespace, and detaches the old root.

    Raises:
        OSError: If the kernel refuses it.
    """
    os.chdir(place)
    _made(_libc.pivot_root(b".", b"."), str(place))  # puts the old root on top of the new one
    _made(_libc.umount2(b".", _DETACH), str(place))
    os.chdir("/")


def adopt_orphans() -> None:
    """Makes this process the parent of every orphaned descendant."""
    _made(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl")


def die_with_parent(number: int) -> None:
    """Makes the kernel send signal `number` to this process when the thread that forked it ends."""
    _made(_libc.prctl(_PR_SET_PDEATHSIG, number), "prctl")
