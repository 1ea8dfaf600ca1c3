"""Runs work on Ray, on this machine or a cluster. Ray retries items whose worker has died."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll.base.errors import InputError
from plimsoll.base.workers.done import (
    MOST_TRIES,
    NO_ANSWER,
    Done,
    answer,
    done_with,
    reason,
    worker_died,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

_SECONDS_TO_CONNECT = 10.0


def run_on_ray(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    result_type: type[Any],
    processes: int | None,
    address: str | None,
) -> Iterator[Done[Result]]:
    """Does what `run_all` does, with one item at a time on each core of the cluster."""
    import ray

    with _connected(processes, address):
        remote = ray.remote(num_cpus=1, max_retries=MOST_TRIES - 1)(answer)
        numbers = {remote.remote(function, item): number for number, item in enumerate(items)}
        try:
            while numbers:
                (ended,), _ = ray.wait(list(numbers), num_returns=1)
                yield _done(numbers.pop(ended), ended, result_type)
        finally:
            for each in numbers:
                ray.cancel(each)


def _done(number: int, ended: Any, result_type: type[Any]) -> Done[Any]:
    import ray

    try:
        return done_with(number, ray.get(ended), result_type)
    except ray.exceptions.RayError as error:
        return Done(number, None, f"{worker_died('died')}: {reason(error)}")
    except Exception as error:  # for example, the result cannot be unpickled
        return Done(number, None, f"the process that worked on it {NO_ANSWER}: {reason(error)}")


def _check_answers(address: str) -> None:
    """Checks that the address accepts connections.

    Without this check, Ray would end this process when it cannot connect.

    Raises:
        InputError: If the address accepts no connection.
    """
    if address == "auto":  # Ray finds the address, or reports that there is none
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"the address of a cluster is HOST:PORT or auto, not {address!r}")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address}: {reason(error)}") from None


@contextmanager
def _connected(processes: int | None, address: str | None) -> Iterator[None]:
    """Connects to Ray for a `with` block, unless the program is connected already."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    if address is not None:
        _check_answers(address)
    own = {"num_cpus": processes, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        with suppress(Exception):
            ray.shutdown()
        raise InputError(f"Ray, at {address or 'this machine'}: {reason(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()
