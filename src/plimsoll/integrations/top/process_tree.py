"""Builds the tree of processes that use a GPU, with the ancestors that several of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_FIRST_PROCESS = 1
_MOST_ANCESTORS = 64


@dataclass(frozen=True)
class Branch:
    """A process in the tree.

    Attributes:
        pid: The process id.
        prefix: The text before the process's name, which draws the tree.
    """

    pid: int
    prefix: str


def process_tree(pids: Sequence[int], parent_of: Callable[[int], int | None]) -> list[Branch]:
    """Returns the processes, each below its nearest ancestor that is shown.

    Common ancestors, such as a job's launcher, are shown too; process 1 is not.

    Args:
        pids: The processes to show, in the order of their rows.
        parent_of: A function that returns a process's parent; None if unknown.
    """
    lines = {pid: list(_ancestors(pid, parent_of)) for pid in pids}
    shown = dict.fromkeys(pids)
    # for each ancestor, its children that are shown or have shown descendants
    branches: dict[int, set[int]] = {}
    for pid, ancestors in lines.items():
        for child, ancestor in zip([pid, *ancestors], ancestors, strict=False):
            branches.setdefault(ancestor, set()).add(child)
    launchers = {ancestor for ancestor, below in branches.items() if len(below) > 1}
    children: dict[int | None, list[int]] = {}
    placed: set[int] = set()
    begun: set[int] = set()

    def place(pid: int) -> None:
        """Adds a process to its parent's children, after placing the parent."""
        if pid in placed:
            return
        begun.add(pid)
        own = lines[pid] if pid in lines else list(_ancestors(pid, parent_of))
        parent = next((each for each in own if each in shown or each in launchers), None)
        if parent in begun - placed:  # parents that were read at different moments may form a cycle
            parent = None
        if parent is not None:
            place(parent)
        placed.add(pid)
        children.setdefault(parent, []).append(pid)

    for pid in pids:
        place(pid)
    return list(_walk(children, None, ""))


def _ancestors(pid: int, parent_of: Callable[[int], int | None]) -> Iterator[int]:
    for _ in range(_MOST_ANCESTORS):
        parent = parent_of(pid)
        if parent is None or parent <= _FIRST_PROCESS:
            return
        yield parent
        pid = parent


def _walk(
    children: dict[int | None, list[int]], parent: int | None, before: str
) -> Iterator[Branch]:
    mine = children.get(parent, [])
    for place, pid in enumerate(mine):
        is_last = place == len(mine) - 1
        is_root = parent is None
        yield Branch(pid, "" if is_root else f"{before}{'└' if is_last else '├'} ")
        below = before if is_root else f"{before}{' ' if is_last else '│'} "
        yield from _walk(children, pid, below)
