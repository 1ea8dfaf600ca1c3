"""The process in which a script runs on simulated GPUs; the command starts it.

`python -m plimsoll.prediction.child.program FILE`: the number of an open file that holds a
`Request`. The script's own output is untouched, and so is its exit status. The process is started
with interrupts blocked: one that comes while modules are imported waits, and then ends it without a
word.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.prediction.child.answer import make_report
from plimsoll.prediction.child.at_exit import account_at_exit, begin_accounted
from plimsoll.prediction.child.death_signal import die_with
from plimsoll.prediction.child.heartbeat import beat
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.host_report import host_figures
from plimsoll.prediction.child.host_watch import HostWatch
from plimsoll.prediction.child.labels import BlockLabels
from plimsoll.prediction.child.least_room import add_least
from plimsoll.prediction.child.processes import (
    StartedProcesses,
    begin_started,
    told_by,
    wait_for_processes,
)
from plimsoll.prediction.child.programs import StartedPrograms
from plimsoll.prediction.child.ranks import pretend_to_be_one, run_ranks
from plimsoll.prediction.child.stops import StoppedError, Stops
from plimsoll.prediction.child.survey.job_survey import join_surveys
from plimsoll.prediction.child.survey.surveyor import Surveyor
from plimsoll.prediction.request import BAD_INPUT, Request
from plimsoll.prediction.scratch import enter_scratch
from plimsoll.script_file import is_kept
from plimsoll.session.environment import record_if_asked
from plimsoll.session.record import record
from plimsoll.session.simulate import simulate
from plimsoll.torch.simulated.simulation import Simulation

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

_variables: list[dict[str, Any]] = []
"""Those of the script: as of any program, they outlive what is done at its exit."""


def main() -> None:
    """Run the script of the request."""
    with os.fdopen(int(sys.argv[1])) as handed:
        request = Request.from_json(handed.read())
    if request.parent is not None:
        die_with(request.parent, signal.SIGTERM)
    began = time.perf_counter()
    process = os.getpid()
    if request.setup.is_eager:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as torch._dynamo.config has it
    is_job = request.nproc_per_node is not None and request.groups is None
    if request.groups is not None:
        pretend_to_be_one(request)
    try:
        simulation = Simulation(request.setup)
        if request.scratch is not None:
            enter_scratch(request.scratch)
            for path, text in request.files.items():
                Path(path).write_text(text)
    except InputError as error:
        _refuse(request, str(error))
    labels = BlockLabels(simulation) if request.report is not None else None
    high_water = HighWaterMarks(simulation)
    started = None
    if labels is not None and request.report is not None:
        folder = Path(request.report).with_name("processes")
        folder.mkdir()
        started = StartedProcesses(request, process, str(folder))
        started.tell(simulation, labels, high_water)

    surveyor = None
    if request.survey is not None and not is_job:
        surveyor = Surveyor(simulation, labels, request.room)
        surveyor.listen()
    recorder = None if request.record is None else record(request.record)

    def install(torch: ModuleType) -> None:
        high_water.install(torch)
        if labels is not None:
            labels.install(torch)
            if surveyor is not None:
                surveyor.install(torch)
            if recorder is not None:
                recorder.__enter__()
        else:
            record_if_asked(torch)

    programs = StartedPrograms(simulation.watchers)
    simulation.runners.add(__file__)
    if started is not None:
        simulate(simulation, install, begin_started, asdict(started))
    elif request.account is not None:
        values = {"setup": asdict(simulation.setup), "to": request.account}
        simulate(simulation, install, begin_accounted, values)
    else:
        simulate(simulation, install)
    stops = Stops(simulation, request.at_most_events)
    if request.report is not None and not is_job:
        beat(simulation)
    if request.account is not None:
        account_at_exit(simulation, high_water, request.account)
    sys.argv = [request.script, *request.arguments]
    # As `python SCRIPT` and `python -m` have it, now that all of plimsoll's own is imported.
    sys.path.insert(0, str(_own_folder(request)))
    if request.is_module and (missing := _missing_module(request.script)) is not None:
        _refuse(request, f"there is no module {missing}")
    host = None if labels is None else HostWatch(simulation, labels)
    if host is not None:
        host.begin()
    failed_rank = None
    if request.groups is not None:
        simulation.end_with_letters(lambda: _tell_groups(simulation, request))
    if is_job:
        failed_rank, ended_by = run_ranks(request)
    else:
        variables, ended_by = _run(request)
        _variables.append(variables)
    if request.groups is not None:
        _tell_groups(simulation, request)
    if request.report is not None and isinstance(ended_by, KeyboardInterrupt):
        stops.interrupt()
    sys.stdout.flush()
    is_parent = os.getpid() == process  # a forked child ends here too
    if labels and started and request.report is not None and is_parent:
        if not isinstance(ended_by, KeyboardInterrupt):
            wait_for_processes()
        if recorder is not None and "torch" in sys.modules:
            recorder.stop()
        seconds = time.perf_counter() - began
        host_use = None if host is None else host.stop()
        report = make_report(simulation, labels, high_water, request, ended_by, stops.stop, seconds)
        if request.finds_least:
            add_least(simulation, report)
        if surveyor is not None and request.survey is not None:
            Path(request.survey).write_text(json.dumps(surveyor.survey().to_dict()))
        if is_job:
            join_surveys(request)
        report = started.add_to(told_by(simulation, report), failed_rank)
        report["prediction"] |= host_figures(host_use, started.folder, request)
        report["prediction"]["assumptions"] += map(asdict, programs.assumptions())
        with NewFile(request.report) as file:
            file.write(json.dumps(report).encode())
        if report["error"] == "out_of_memory":
            sys.exit(1)  # the answer, not an error
    _end(ended_by)


def _refuse(request: Request, why: str) -> NoReturn:
    """End before the script begins, and say why: to who asked, or where nobody did, on stderr."""
    if request.report is None:
        print(f"plimsoll: {why}", file=sys.stderr)
    else:
        with NewFile(request.report) as file:
            file.write(json.dumps({"error": "refused", "reason": why}).encode())
    sys.exit(BAD_INPUT)


def _tell_groups(simulation: Simulation, request: Request) -> None:
    """Which process groups there are is all that was asked for."""
    assert request.groups is not None
    told = {"groups": simulation.groups, "letters": simulation.groups_of_letters}
    Path(request.groups).write_text(json.dumps(told))
    os._exit(0)


def _own_folder(request: Request) -> Path:
    """Where the program's own modules are."""
    script = Path(request.script)
    return Path.cwd() if request.is_module or is_kept(script) else script.resolve().parent


def _missing_module(name: str) -> str | None:
    """The module or the package of it that Python cannot find; None where all are there."""
    for end in [place for place, sign in enumerate(name) if sign == "."] + [len(name)]:
        try:
            spec = importlib.util.find_spec(name[:end])
        except Exception:  # the package's own, which shows itself when it is run
            return None
        if spec is None:
            return name[:end]
    return None


def _run(request: Request) -> tuple[dict[str, Any], BaseException | None]:
    """Run it; its variables, and how it ended."""
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
    if isinstance(error, StoppedError):
        return
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
