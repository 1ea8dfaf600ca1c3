"""Runs each rank of a serving engine, or each of several engines, in its own process."""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing import connection
from typing import Any


def run_together(what: str, count: int, run: Callable[..., None], *shared: Any) -> None:
    """Calls `run(place, *shared)` for each place below `count`, in a process of its own.

    If a process fails, ends all other processes and exits with an error.

    Args:
        what: The word for one process in the error, such as "rank" or "engine".
        count: The number of processes.
        run: The function. Each process imports its module anew.
        shared: The arguments after the place.
    """
    spawning = multiprocessing.get_context("spawn")
    processes = [spawning.Process(target=run, args=(place, *shared)) for place in range(count)]
    for process in processes:
        process.start()
    left = processes
    failed: list[int] = []
    while left and not failed:
        connection.wait([process.sentinel for process in left])
        codes = [process.exitcode for process in processes]
        failed = [place for place, code in enumerate(codes) if code]
        left = [process for process, code in zip(processes, codes, strict=True) if code is None]
    for process in left:
        process.terminate()
    for process in processes:
        process.join()
    if failed:
        sys.exit(f"{what} {failed[0]} of {count} failed")
