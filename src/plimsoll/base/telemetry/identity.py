"""Identifies processes: Linux reuses process ids, so the time of the start is compared too."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_ENDED = ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """Returns a process's start in clock ticks since boot; None if there is no such process.

    A zombie counts as ended.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain any character, so fields are counted from the last
    # parenthesis.
    state, *fields = text[text.rfind(")") + 1 :].split()
    return None if state in _ENDED else int(fields[18])


def pid_namespace() -> int:
    """Returns the PID namespace, which tells process ids of this container from those of others."""
    try:
        return (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def program_name(pid: int) -> str | None:
    """Returns the name of a process's program, if this user may read it."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    """Returns the parent of a process; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text[text.rfind(")") + 1 :].split()[1])
