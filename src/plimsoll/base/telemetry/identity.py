"""Which process a number means: numbers are given again, so the time of its start goes with it."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_ENDED = ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine did; None if there is none.

    One that has ended and whose parent has not noticed yet is none.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; fields are counted from its end.
    state, *fields = text[text.rfind(")") + 1 :].split()
    return None if state in _ENDED else int(fields[18])


def pid_namespace() -> int:
    """What tells the numbers of this container's processes from those of others."""
    try:
        return (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def program_name(pid: int) -> str | None:
    """The name of any process's program, if this user may know it."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    """The process that started another, or that took it over; None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text[text.rfind(")") + 1 :].split()[1])
