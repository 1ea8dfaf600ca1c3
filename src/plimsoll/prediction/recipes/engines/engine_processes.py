"""Runs the ranks of a serving engine, or several engines, in a process each."""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing import connection
from typing import Any


def run_together(what: str, count: int, run: Callable[..., None], *shared: Any) -> None:
    """Calls `run(place, *shared)` for each place below `count`, in a process of its own.

    If a process fails, ends the others and exits with an error.

    Args:
        what: What each process runs, for the error: a rank or an engine.
        count: The number of processes.
        run: The function. Each process imports its module anew.
        shared: The arguments after the place.
    """
    spawning = multiprocessing.get_context("spawn")
    processes = [spawning.Process(target=run, args=(place, *shared)) for place in range(count)]
    for process in processes:
        process.start()
    left = list(processes)
    while left and not any(process.exitcode for process in processes):
        connection.wait([process.sentinel for process in left])
        left = [process for process in left if process.exitcode is None]
    for process in left:
        process.terminate()
    for place, process in enumerate(processes):
        process.join()
        if process.exitcode and process not in left:
            sys.exit(f"{what} {place} of {count} failed")
