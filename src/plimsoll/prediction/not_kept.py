"""Guarantees that a prediction could not give: exact figures, and isolation of a script's writes.

JSON has them under the key `not_kept`, and plimsoll prints a line on stderr for each. In most
cases an assumption of the simulation is the reason. Reports list these assumptions too.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable
from plimsoll.prediction.assumed import (
    EXTRAPOLATED_NCCL,
    FREE_LATER,
    LETS_GO_LATER,
    SIZES_BY_DATA,
    WATCHER_FAILED,
    WORKSPACES,
)
from plimsoll.prediction.trials.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from plimsoll.prediction.assumed import Assumed
    from plimsoll.prediction.trials.kept_apart import KeptApart

_OTHER_KERNELS = "plimsoll assumes the kernels of"
_ISOLATION = (
    "if the script started programs that make system calls without libc, they wrote to real files; "
    "this machine offers neither namespaces nor Landlock to stop them"
)
_MOST_OPERATIONS = 3
_SAID = {
    "isolation": "the script may have written to real files",
    "card": "the figures of this card are partly extrapolated",
    "pace": "the memory depends on the host's pace",
    "values": "the memory depends on data that plimsoll did not compute",
    "watching": "plimsoll did not see all of the run",
}
"""The beginning of the line on stderr about each guarantee that could not be given."""


@dataclass(frozen=True)
class NotKept:
    """A guarantee that could not be given.

    Attributes:
        promise: The guarantee, a key of `_SAID`. "isolation": the script's writes are deleted.
            "card": kernels take the memory that was measured. "pace": the result does not depend on
            the host's pace. "values": the values that sizes depend on are computed. "watching":
            plimsoll observed the whole run.
        why: Why it could not be given.
    """

    promise: str
    why: str


def promises_not_kept(
    assumptions: Sequence[Assumed], kept_apart: KeptApart | None
) -> list[NotKept]:
    """Returns the guarantees that a run could not give, each once.

    Args:
        assumptions: The assumptions of the run.
        kept_apart: How real files were protected from the script's writes; None if the script was
            allowed to write to real files.
    """
    found = []
    if kept_apart is not None and kept_apart.kind == Kind.LAYER:
        found.append(NotKept("isolation", _ISOLATION))
    by_promise: dict[str, dict[str, list[str]]] = {}
    for each in assumptions:
        promise = _promise(each.what)
        if promise is not None:
            where = each.operation if each.line is None else f"{each.operation} ({each.line})"
            by_promise.setdefault(promise, {}).setdefault(each.what, []).append(where)
    for promise, by_text in by_promise.items():
        found.append(NotKept(promise, "; ".join(_sentences(by_text))))
    return found


def each_once(several: Iterable[Sequence[NotKept]]) -> list[NotKept]:
    """Returns the guarantees that at least one of several runs could not give.

    Each guarantee comes once, with the reason from the first such run.
    """
    by_promise: dict[str, NotKept] = {}
    for run in several:
        for each in run:
            by_promise.setdefault(each.promise, each)
    return list(by_promise.values())


def tell(not_kept: Iterable[NotKept]) -> None:
    """Prints on stderr a line for each guarantee, which says why plimsoll could not give it."""
    for each in not_kept:
        print(printable(f"plimsoll: {_SAID[each.promise]}: {each.why}"), file=sys.stderr)


def _promise(what: str) -> str | None:
    if what in WORKSPACES or what == EXTRAPOLATED_NCCL or what.startswith(_OTHER_KERNELS):
        return "card"
    if what in (LETS_GO_LATER, FREE_LATER):
        return "pace"
    if what in SIZES_BY_DATA:
        return "values"
    return "watching" if what == WATCHER_FAILED else None


def _sentences(by_text: dict[str, list[str]]) -> Iterator[str]:
    for text, operations in by_text.items():
        more = len(operations) - _MOST_OPERATIONS
        named = ", ".join(operations[:_MOST_OPERATIONS])
        yield f"{named}{f' and {more} more' if more > 0 else ''}: {text}"
