"""Runs a script as a job of several ranks, as PyTorch's `torchrun` would.

The ranks' output is shown as it arrives, each line with its rank. The first rank that fails ends
the job, and no further output of other ranks is shown.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.prediction.child.death_signal import die_with
from plimsoll.prediction.child.first_failure import first_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.request import Request

_INTERVAL_SECONDS = 0.02
_SECONDS_TO_ANSWER = 30
"""How many seconds an interrupted rank is given to write its report."""
_SECONDS_TO_END = 5
_ENDED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
"""Signals that are never the result of another rank's failure.

If one of them ended a rank, this rank is the first to fail.
"""


class _Rank:
    """The process of one rank, in its own process group, with a thread that shows its output."""

    def __init__(self, rank: int, command: list[str], environment: dict[str, str]) -> None:
        parent = os.getpid()
        self.rank = rank
        self.is_shown = True
        self.process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent, signal.SIGKILL),
        )
        self._thread = threading.Thread(target=self._show, daemon=True)

    def show(self) -> None:
        """Shows the rank's output from now on, in a thread."""
        self._thread.start()

    def finish_showing(self) -> None:
        """Waits until all of the rank's output is shown, at most `_SECONDS_TO_END`.

        The time is limited because a process that the rank started may go on printing.
        """
        self._thread.join(_SECONDS_TO_END)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the rank's process and to the processes in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _show(self) -> None:
        assert self.process.stdout is not None
        own = f"[rank{self.rank}]: ".encode()  # PyTorch itself begins lines of tracebacks with this
        with self.process.stdout as lines:
            for line in lines:
                if self.is_shown:
                    text = f"[rank {self.rank}] ".encode() + line.removeprefix(own)
                    sys.stderr.buffer.write(text if text.endswith(b"\n") else text + b"\n")
                    sys.stderr.buffer.flush()


def run_ranks(request: Request) -> tuple[int | None, BaseException | None]:
    """Runs the ranks of a request to their end.

    All ranks have ended when this function returns, however the job ends.

    Returns:
        Two values. The first is the rank that failed, or None. The second is the error that ends
        the job: a `SystemExit` with that rank's status, a `KeyboardInterrupt`, or None if no rank
        failed.
    """
    ranks: list[_Rank] = []
    try:
        for environment in _environments(request):
            rank = int(environment["RANK"])
            ranks.append(_Rank(rank, _command(request), {**os.environ, **environment}))
        for each in ranks:
            each.show()
        failed = _first_failure(ranks)
        if failed is None:
            for each in ranks:
                each.finish_showing()
            return None, None
        first = _first_to_fail(ranks, failed, request)
        _hide(ranks, first)
        _wait([first], _SECONDS_TO_END)
        failed = failed if first.process.returncode in (None, 0) else first
        failed.finish_showing()
        return failed.rank, SystemExit(_status(failed))
    except KeyboardInterrupt as interrupt:
        _hide(ranks, None)
        for each in ranks:
            each.send(signal.SIGINT)
        _wait(ranks, _SECONDS_TO_ANSWER)
        return None, interrupt
    finally:
        _end(ranks)


def _environments(request: Request) -> Iterator[dict[str, str]]:
    """Yields, for each rank, the environment variables that torchrun would add for it."""
    assert request.nproc_per_node is not None
    local, nodes = request.nproc_per_node, request.nnodes
    world = {
        "WORLD_SIZE": str(local * nodes),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": str(local * nodes),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if local > 1:
        world["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if request.ranks is not None:
        world["PLIMSOLL_RANKS"] = ",".join(map(str, request.ranks))
    for rank in request.ranks or range(local * nodes):
        own = {"RANK": rank, "LOCAL_RANK": rank % local, "GROUP_RANK": rank // local}
        yield {**world, **{name: str(value) for name, value in own.items()}, "ROLE_RANK": str(rank)}


def pretend_to_be_one(request: Request) -> None:
    """Sets this process's environment variables as torchrun does for a job's first rank."""
    assert request.nproc_per_node is not None
    local = request.nproc_per_node
    told = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "LOCAL_WORLD_SIZE": local}
    told["WORLD_SIZE"] = local * request.nnodes
    os.environ.update({name: str(value) for name, value in told.items()})


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def _command(request: Request) -> list[str]:
    kind = ["-m"] if request.is_module else []
    return [sys.executable, *kind, request.script, *request.arguments]


def _first_failure(ranks: list[_Rank]) -> _Rank | None:
    """Waits until a rank fails, and returns it; None if all ranks end without failure."""
    running = list(ranks)
    while running:
        ended = [each for each in running if each.process.poll() is not None]
        failed = next((each for each in ended if each.process.returncode != 0), None)
        if failed is not None:
            return failed
        running = [each for each in running if each not in ended]
        time.sleep(_INTERVAL_SECONDS)
    return None


def _first_to_fail(ranks: list[_Rank], failed: _Rank, request: Request) -> _Rank:
    """Returns the rank whose error came first, even if the process of `failed` ended earlier.

    Returns `failed` if no rank noted an error, or if a signal such as SIGKILL ended `failed`.
    """
    if request.report is None or -failed.process.returncode in _ENDED_FROM_OUTSIDE:
        return failed
    may_have_failed = {each.rank for each in ranks if each.process.poll() != 0}
    noted = first_failure(Path(request.report).with_name("processes"), may_have_failed)
    return next((each for each in ranks if noted and each.rank == noted.rank), failed)


def _hide(ranks: list[_Rank], but: _Rank | None) -> None:
    for each in ranks:
        each.is_shown = each is but


def _status(failed: _Rank) -> int:
    status = failed.process.returncode
    if status >= 0:
        return int(status)
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    print(f"[rank {failed.rank}] was killed by {name}", file=sys.stderr)
    return int(128 - status)


def _wait(ranks: list[_Rank], seconds: float) -> None:
    """Waits until all ranks have ended, at most `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(each.process.poll() is None for each in ranks):
        time.sleep(_INTERVAL_SECONDS)


def _end(ranks: list[_Rank]) -> None:
    running = [each for each in ranks if each.process.poll() is None]
    for each in running:
        each.send(signal.SIGTERM)
    _wait(running, _SECONDS_TO_END)
    for each in running:
        each.send(signal.SIGKILL)
        each.process.wait()
