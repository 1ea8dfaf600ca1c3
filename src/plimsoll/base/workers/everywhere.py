"""Where work is done: on Ray where it is installed, else on processes of this machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll.base.errors import InputError
from plimsoll.base.workers.local_processes import run_locally
from plimsoll.base.workers.on_ray import run_on_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plimsoll.base.workers.done import Done

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    result_type: type[Any] = object,
    processes: int | None = None,
    address: str | None = None,
) -> Iterator[Done[Result]]:
    """Call a function with each item, many at the same time; what is done comes as it ends.

    An item whose worker dies is given to another one, three times at most. Who stops listening, by
    an interrupt too, ends the workers.

    Args:
        function: One that workers can import by its module and name.
        items: What it is called with: plain data, as its results are.
        result_type: The type of its results; a worker that gives another is an error of its item.
        processes: How many at the same time on this machine; by default one a core.
        address: Of a Ray cluster, on each machine of which plimsoll is installed.

    Raises:
        InputError: If there is no such cluster, or no Ray to reach it, or fewer than one process.
    """
    if processes is not None and processes < 1:
        raise InputError(f"at least 1 process is needed, not {processes}")
    if _has_ray():
        return run_on_ray(
            function, items, result_type=result_type, processes=processes, address=address
        )
    if address is not None:
        raise InputError(
            f"the cluster at {address} is reached by Ray, which is not installed: "
            "pip install 'plimsoll-gpu[ray]'"
        )
    count = min(processes or _cores(), max(len(items), 1))
    return run_locally(function, items, count, result_type)


def where(*, processes: int | None = None, address: str | None = None) -> str:
    """Where `run_all` does its work, in a line."""
    count = processes or _cores()
    local = f"{count} process{'es' * (count > 1)} of this machine"
    if not _has_ray():
        return f"Ray is not installed: {local}"
    return f"Ray: {local}" if address is None else f"Ray: the cluster at {address}"


def _has_ray() -> bool:
    """Whether Ray is installed, and not just a folder of that name."""
    found = find_spec("ray")
    return found is not None and found.origin is not None


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
