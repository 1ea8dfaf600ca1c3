"""Runs work in processes of this machine, with the standard library alone.

For each worker process, a thread of the caller's process sends the items, one at a time.
The workers are started as programs, without multiprocessing, so the caller's main module needs no
`__main__` guard. Ctrl-C in the terminal reaches only the caller, which then ends the workers.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll.base.standard_error import stderr_file
from plimsoll.base.workers.done import MOST_TRIES, NO_ANSWER, Done, done_with, worker_died

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

_COMMAND = [sys.executable, "-P", "-m", "plimsoll.base.workers.worker_process"]
_SECONDS_TO_DIE = 2.0
_SECONDS_TO_END = 10.0
"""A worker that must end gets this time to undo unfinished work. Then plimsoll kills the worker."""


def run_locally(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    result_type: type[Any] = object,
) -> Iterator[Done[Result]]:
    """Does what `run_all` does, in `processes` processes of this machine."""
    waiting: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        waiting.put(numbered)
    ended: queue.SimpleQueue[Done[Result] | Exception] = queue.SimpleQueue()
    crew = _Crew(function, result_type)

    def work() -> None:
        try:
            with suppress(queue.Empty, _OverError):
                while True:
                    ended.put(crew.done(*waiting.get_nowait()))
        except Exception as error:  # for example, there is no memory to start a process
            ended.put(error)
        finally:
            crew.leave()

    try:
        for _ in range(processes):
            threading.Thread(target=work, daemon=True).start()
        for _ in items:
            done = ended.get()
            if isinstance(done, Exception):
                raise done
            yield done
    finally:
        crew.end()


class _OverError(Exception):
    """Tells a thread that the caller has stopped iterating, so no worker may start."""


class _Crew:
    """The worker processes, one for each thread that `run_locally` starts."""

    def __init__(self, function: Callable[[Any], Any], result_type: type[Any]) -> None:
        self._task = (function.__module__, function.__qualname__, sys.path)
        self._result_type = result_type
        self._lock = threading.Lock()
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._is_over = False

    def done(self, index: int, item: Any) -> Done[Any]:
        """Sends an item to this thread's worker, and returns the outcome."""
        how = ""
        asked = pickle.dumps(item)
        for _ in range(MOST_TRIES):
            worker = self._worker()
            assert worker.stdin is not None
            assert worker.stdout is not None
            try:
                worker.stdin.write(asked)
                worker.stdin.flush()
                answered = pickle.load(worker.stdout)  # noqa: S301
                return done_with(index, answered, self._result_type)
            # The worker sent nothing, half an answer, or bytes on which pickle may raise any error.
            except Exception:
                how = self._failed(worker)
        return Done(index, None, worker_died(how))

    def leave(self) -> None:
        """Ends this thread's worker, if it has one; call it when no items are left."""
        if threading.get_ident() in self._workers:
            self._dismissed()

    def end(self) -> None:
        """Ends all workers. Each worker first undoes its unfinished work."""
        with self._lock:
            self._is_over = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.terminate()
        for worker in workers:
            _wait(worker)

    def _worker(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_over:
                raise _OverError
            worker = self._workers.get(threading.get_ident())
            if worker is None:
                worker = subprocess.Popen(  # noqa: S603
                    _COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr_file(),
                    start_new_session=True,
                )
                self._workers[threading.get_ident()] = worker
                assert worker.stdin is not None
                with suppress(OSError):  # a dead worker is noticed later, by its exit status
                    pickle.dump(self._task, worker.stdin)
            return worker

    def _failed(self, worker: subprocess.Popen[bytes]) -> str:
        """Ends this thread's worker after a failure, and returns the failure in words."""
        try:
            how = _end_of(worker.wait(_SECONDS_TO_DIE))
        except subprocess.TimeoutExpired:
            how = NO_ANSWER
        self._dismissed()
        return how

    def _dismissed(self) -> int:
        """Ends this thread's worker and returns its exit status."""
        with self._lock:
            worker = self._workers.pop(threading.get_ident())
        return _wait(worker)


def _wait(worker: subprocess.Popen[bytes]) -> int:
    """Closes a worker's input, so that the worker ends. Returns the worker's exit status.

    A worker that does not end in time is killed.
    """
    if worker.stdin is not None:
        with suppress(OSError):
            worker.stdin.close()
    try:
        status = worker.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        worker.kill()
        status = worker.wait()
    if worker.stdout is not None:
        worker.stdout.close()
    return status


def _end_of(status: int) -> str:
    if status < 0 and os.name == "posix" and -status in set(signal.Signals):
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
