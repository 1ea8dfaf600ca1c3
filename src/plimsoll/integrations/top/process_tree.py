"""Which process started which: those that use a GPU, and what started several of them."""

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
        pid: Its number.
        prefix: What stands before its name, so that it is seen whose child it is.
    """

    pid: int
    prefix: str


def process_tree(pids: Sequence[int], parent_of: Callable[[int], int | None]) -> list[Branch]:
    """The processes, each below the nearest one that started it and is shown too.

    What started several of them, such as a job's launcher, is shown too; the first process of the
    machine is not.

    Args:
        pids: Those that are to be shown, in the order of their rows.
        parent_of: The process that started one; None if that is not known.
    """
    lines = {pid: list(_ancestors(pid, parent_of)) for pid in pids}
    shown = dict.fromkeys(pids)
    branches: dict[int, set[int]] = {}  # by ancestor, its children with a process below them
    for pid, ancestors in lines.items():
        for child, ancestor in zip([pid, *ancestors], ancestors, strict=False):
            branches.setdefault(ancestor, set()).add(child)
    launchers = {ancestor for ancestor, below in branches.items() if len(below) > 1}
    children: dict[int | None, list[int]] = {}
    placed: set[int] = set()
    begun: set[int] = set()

    def place(pid: int) -> None:
        """Put it below its parent, which comes first."""
        if pid in placed:
            return
        begun.add(pid)
        own = lines[pid] if pid in lines else list(_ancestors(pid, parent_of))
        parent = next((each for each in own if each in shown or each in launchers), None)
        if parent in begun - placed:  # parents that were read at different moments make a circle
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
