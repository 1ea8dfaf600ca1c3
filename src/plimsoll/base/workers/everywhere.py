"""Runs work on Ray if Ray is installed, else in processes of this machine."""

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
    """Calls a function once for each item, in parallel, and yields outcomes as calls complete.

    If a worker dies, another worker gets the item. If three workers die with the same item, the
    item fails. The workers end when the caller stops iterating, even by an interrupt.

    Args:
        function: A function that workers can import by module and name.
        items: The arguments, one for each call. Arguments and results are plain data.
        result_type: The type of the results; an item whose result has another type fails.
        processes: The number of worker processes on this machine; by default one for each core.
        address: The address of a Ray cluster; plimsoll must be installed on each of its machines.

    Raises:
        InputError: If there is no such cluster, Ray is not installed, or `processes` is below one.
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
    count = min(processes or cores(), max(len(items), 1))
    return run_locally(function, items, count, result_type)


def where(*, processes: int | None = None, address: str | None = None) -> str:
    """Returns one line that says on which machines `run_all` would run."""
    count = processes or cores()
    local = f"{count} process{'es' * (count > 1)} on this machine"
    if not _has_ray():
        return f"running in {local}, because Ray is not installed"
    if address is None:
        return f"running in {local}, with Ray"
    return f"running on the Ray cluster at {address}"


def _has_ray() -> bool:
    """Returns whether Ray is installed; a mere folder named ray does not count."""
    found = find_spec("ray")
    return found is not None and found.origin is not None


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
