"""Identifies processes by id and start time, because Linux reuses process ids."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_ENDED = ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """Returns the time at which a process started, in clock ticks since boot; None if it has ended.

    A zombie counts as ended.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The file gives the program's name in parentheses. The name may contain any character, even
    # parentheses. So the fields are counted from the last parenthesis.
    state, *fields = text[text.rfind(")") + 1 :].split()
    return None if state in _ENDED else int(fields[18])


def pid_namespace() -> int:
    """Returns the number of this process's PID namespace, which differs between containers."""
    try:
        return (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def program_name(pid: int) -> str | None:
    """Returns the name of a process's program; None if this user may not read it."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    """Returns the process id of a process's parent; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text[text.rfind(")") + 1 :].split()[1])
