"""The process in which a script runs on simulated GPUs; the command starts it.

`python -m plimsoll.prediction.child.program FILE`: the number of an open file that holds a
`Request`. The script's own output is untouched, and so is its exit status. The process is started
with interrupts blocked: one that comes while modules are imported waits, and then ends it without a
word.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.prediction.child.answer import make_report
from plimsoll.prediction.child.at_exit import simulated_accounts
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.labels import BlockLabels
from plimsoll.prediction.child.native_replay import NativeReplay
from plimsoll.prediction.request import BAD_INPUT, Request
from plimsoll.prediction.scratch import enter_scratch
from plimsoll.session.environment import record_if_asked
from plimsoll.session.simulate import simulate
from plimsoll.telemetry.accounts import report_at_exit
from plimsoll.torch.simulated.simulation import Simulation

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def main() -> None:
    """Run the script of the request."""
    with os.fdopen(int(sys.argv[1])) as handed:
        request = Request.from_json(handed.read())
    if request.parent is not None:
        _end_with(request.parent)
    began = time.perf_counter()
    process = os.getpid()
    try:
        simulation = Simulation(request.setup)
        if request.scratch is not None:
            enter_scratch(request.scratch)
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    labels = BlockLabels(simulation) if request.report is not None else None
    high_water = HighWaterMarks(simulation)

    def install(torch: ModuleType) -> None:
        high_water.install(torch)
        if labels is not None:
            labels.install(torch)
        else:
            record_if_asked()

    simulation.runners.add(__file__)
    simulate(simulation, install)
    if request.account is not None:
        native = NativeReplay(simulation) if request.setup.allocator == "elastic" else None
        report_at_exit(lambda: simulated_accounts(simulation, high_water, native), request.account)
    sys.argv = [request.script, *request.arguments]
    # As `python SCRIPT` and `python -m` have it, now that all of plimsoll's own is imported.
    sys.path.insert(0, str(_own_folder(request)))
    _variables, ended_by = _run(request)
    sys.stdout.flush()
    is_parent = os.getpid() == process  # a forked child ends here too
    if labels is not None and request.report is not None and is_parent:
        seconds = time.perf_counter() - began
        report = make_report(simulation, labels, high_water, request, ended_by, seconds)
        with NewFile(request.report) as file:
            file.write(json.dumps(report).encode())
        if report["error"] == "out_of_memory":
            sys.exit(1)  # the answer, not an error
    _end(ended_by)


def _end_with(parent: int) -> None:
    """Have this process terminated when its parent ends, whatever ends it."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _own_folder(request: Request) -> Path:
    """Where the program's own modules are."""
    return Path.cwd() if request.is_module else Path(request.script).resolve().parent


def _run(request: Request) -> tuple[dict[str, Any], BaseException | None]:
    """Run it; its variables, which live as long as the program does, and how it ended."""
    try:
        if request.is_module:
            return runpy.run_module(request.script, run_name="__main__", alter_sys=True), None
        return runpy.run_path(request.script, run_name="__main__"), None
    except BaseException as error:  # also SystemExit and KeyboardInterrupt
        return {}, error


def _end(error: BaseException | None) -> None:
    """End as the script would have."""
    if error is None:
        return
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt):
        sys.exit(130)
    _print_traceback(error)
    sys.exit(1)


def _print_traceback(error: BaseException) -> None:
    own = (os.path.dirname(__file__), "<frozen runpy>")  # noqa: PTH120
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    hook = sys.excepthook  # the script's own, if it set one
    hook(type(error), error.with_traceback(trace), trace)


if __name__ == "__main__":
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        main()
    except KeyboardInterrupt:
        sys.exit(130)
