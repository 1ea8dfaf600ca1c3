"""Simulates several scripts in parallel, each in a process of its own (a *trial*)."""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.standard_error import stderr_bytes
from plimsoll.prediction.child_process import MOST_AT_A_TIME, started
from plimsoll.prediction.predict import predict_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Attributes:
        found: The prediction; None if the script failed for another reason than memory.
        error: The script's error; None if there is a prediction.
        output: The output of the failed script.
    """

    found: Prediction | None
    error: ScriptError | None = None
    output: bytes = b""


def slots(request: Request, most: int = MOST_AT_A_TIME) -> int:
    """Returns how many trials of a request can run in parallel: one for each core, up to `most`."""
    if request.nproc_per_node is not None or request.keep_writes:
        # The ranks of a single job already use all cores. If writes are kept, parallel trials would
        # read each other's files.
        return 1
    return min(most, len(os.sched_getaffinity(0)))


def run_beside(requests: Sequence[Request], ended: Callable[[int, Outcome], None]) -> list[Outcome]:
    """Runs trials in parallel, and ends all of them before it returns or raises an error.

    Args:
        requests: The requests.
        ended: Called at the end of each trial, with its index and its outcome.

    Raises:
        InputError: If one of the scripts cannot be simulated.
    """
    outcomes: dict[int, Outcome] = {}
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(requests)))
        futures = {}
        for number, request in enumerate(requests):
            if request.runs_distinct:  # a first run has to find out which ranks to run
                wait = _of_roles(request)
            else:
                output = io.BytesIO()
                # Linux ends the process when the thread that started it ends. So this thread starts
                # the process, not a thread of the pool.
                answer = stack.enter_context(
                    started(request, shows_output=False, is_aside=True, failed_output=output)
                )
                wait = _waiting(answer, output)
            futures[pool.submit(wait)] = number
        for future in as_completed(futures):
            number = futures[future]
            outcomes[number] = future.result()
            ended(number, outcomes[number])
    return [outcomes[number] for number in range(len(requests))]


def _waiting(answer: Callable[[], Prediction], output: io.BytesIO) -> Callable[[], Outcome]:
    def wait() -> Outcome:
        try:
            return Outcome(answer())
        except ScriptError as error:
            return Outcome(None, error, output.getvalue())
        except InputError:
            stderr_bytes().write(output.getvalue())  # the script's output says more than the error
            sys.stderr.flush()
            raise

    return wait


def _of_roles(request: Request) -> Callable[[], Outcome]:
    def run() -> Outcome:
        try:
            return Outcome(predict_request(request, measure_need=False, shows_output=False))
        except ScriptError as error:
            return Outcome(None, error)

    return run
