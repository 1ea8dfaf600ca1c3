"""Runs plimsoll's command without the functions that Python lacks on Windows.

This file imports third-party modules before it removes the functions. Third-party modules check
the operating system and, on Linux, expect the functions.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
import socket
import sys
from typing import Any

import numpy  # noqa: F401
import pyarrow.parquet  # noqa: F401
import rich.console  # noqa: F401
import typer.testing  # noqa: F401

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
NAMES: dict[Any, str] = {
    os: "eventfd eventfd_read eventfd_write fchdir fchmod fork forkpty getegid geteuid getgid "
    "getpgid getuid kill killpg memfd_create mkfifo O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK "
    "O_TMPFILE openpty posix_spawn pread pwrite register_at_fork sched_getaffinity setsid statvfs "
    "sysconf uname wait4 waitid",  # WNOHANG stays: subprocess needs it on Linux
    select: "poll epoll POLLIN",
    signal: "alarm pause pthread_kill pthread_sigmask setitimer SIG_BLOCK SIG_UNBLOCK SIGHUP "
    "SIGKILL SIGSTOP SIGCONT SIGUSR1 sigwait",
    socket: "AF_UNIX MSG_NOSIGNAL SO_PEERCRED SCM_RIGHTS",
}


def main() -> None:
    """Runs the command that the arguments name."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    load = ctypes.CDLL.__init__

    def load_by_name(self: ctypes.CDLL, name: str | None, *more: Any, **named: Any) -> None:
        if name is None:
            raise TypeError("Windows has no handle of the whole process")
        load(self, name, *more, **named)

    ctypes.CDLL.__init__ = load_by_name  # type: ignore[method-assign]
    platform.system = lambda: "Windows"
    from plimsoll.cli import main as plimsoll

    plimsoll()


if __name__ == "__main__":
    main()
