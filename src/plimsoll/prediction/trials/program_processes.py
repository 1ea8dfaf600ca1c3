"""Finds the processes of a trial by their parents, or by a mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "PLIMSOLL_SCRATCH"
"""The environment variable that marks all processes of a trial.

The first line of its value is the path of the trial's folder.
"""
_SECONDS_BETWEEN = 0.005


def descendants(process: int) -> list[int]:
    """Returns the ids of all descendants of a process, zombies included."""
    children: dict[int, list[int]] = {}
    for each in _processes():
        with suppress(OSError, IndexError, ValueError):
            after_name = Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(after_name[1]), []).append(each)
    found = children.get(process, [])
    for each in found:  # the loop also reaches the entries that it adds
        found.extend(children.get(each, []))
    return found


def end_descendants() -> None:
    """Kills all descendants of this process, which must have called `kernel.adopt_orphans`."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        if not (left := descendants(os.getpid())):
            return
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN)


def end_marked(folder: Path) -> None:
    """Kills this user's processes whose mark names the trial in `folder`."""
    mark = f"{MARK}={folder}".encode()
    for each in _processes():
        with suppress(OSError):
            variables = Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
            if any(one == mark or one.startswith(mark + b"\n") for one in variables):
                os.kill(each, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
