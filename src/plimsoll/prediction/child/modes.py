"""The modes of a process that runs a script on simulated GPUs. They differ in what is reported.

AsItIs      Serves `plimsoll run --simulate`: the processes report the memory they use of each GPU.
Groups      Runs one rank of a job alone, and reports the process groups that the rank makes.
Answered    Serves a prediction: sends a report of the memory use to the parent process.
Surveyed    Does the same as Answered, and reports the parts of the program that could be changed.
Job         Does the same as Answered, but starts each rank of a job as a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.files import NewFile
from plimsoll.base.telemetry.exit_summaries import FIRST_PROCESS
from plimsoll.prediction.child import processes, script_run
from plimsoll.prediction.child.answer import make_report
from plimsoll.prediction.child.at_exit import begin_summarized, summary_at_exit
from plimsoll.prediction.child.heartbeat import beat
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.host_report import host_figures
from plimsoll.prediction.child.host_watch import HostWatch
from plimsoll.prediction.child.labels import BlockLabels
from plimsoll.prediction.child.least_room import add_least
from plimsoll.prediction.child.programs import StartedPrograms
from plimsoll.prediction.child.ranks import pretend_to_be_one, run_ranks
from plimsoll.prediction.child.stops import Stops
from plimsoll.prediction.child.survey.job_survey import join_surveys
from plimsoll.prediction.child.survey.surveyor import Surveyor
from plimsoll.prediction.trials.temporary_folder import folder_of_this_process
from plimsoll.torch.session.environment import watch_if_asked
from plimsoll.torch.session.record import record
from plimsoll.torch.session.simulate import simulate
from plimsoll.torch.simulated.simulation import Simulation

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.prediction.request import Request


class AsItIs:
    """Runs the script. On request, reports the GPU memory of the script's processes.

    Attributes:
        simulation: The simulated GPUs.
        stops: Ends the script early, for example after `at_most_events`.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.simulation = Simulation(request.setup)
        self._high_water = HighWaterMarks(self.simulation)

    def begin(self) -> None:
        """Makes the script's `import torch` see the simulated GPUs.

        Raises:
            InputError: If PyTorch is imported already.
        """
        summary = self._request.summary
        if summary is None:
            simulate(self.simulation, self._install)
        else:
            os.environ[FIRST_PROCESS] = str(os.getpid())
            folder = folder_of_this_process()
            cards = None if folder is None else str(folder)
            values = {"setup": asdict(self.simulation.setup), "to": summary, "cards": cards}
            simulate(self.simulation, self._install, begin_summarized, values)
            summary_at_exit(self.simulation, self._high_water, summary, cards)
        self._bound()

    def execute(self) -> BaseException | None:
        """Runs the script. Returns the error that ended it, or None."""
        return script_run.run_script(self._request)

    def finish(self, ended_by: BaseException | None) -> None:
        """Does nothing here. In other modes it writes the report, once `execute` has returned."""

    def _install(self, torch: ModuleType) -> None:
        self._high_water.install(torch)
        watch_if_asked(torch)

    def _bound(self) -> None:
        # The code of these files runs the script. Their frames do not belong to the script's call
        # stacks.
        callers = {frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe())}
        self.simulation.runners |= {script_run.__file__, *callers}
        self.stops = Stops(self.simulation, self._request.at_most_events)


class Groups(AsItIs):
    """Runs one rank alone until it first communicates, and reports its process groups."""

    def __init__(self, request: Request) -> None:
        pretend_to_be_one(request)
        super().__init__(request)

    def begin(self) -> None:
        """Does what `AsItIs.begin` does, and lets the first communication end the process."""
        super().begin()
        self.simulation.end_with_sends(self._tell)

    def finish(self, ended_by: BaseException | None) -> None:  # noqa: ARG002
        """Writes the groups, and ends the process."""
        self._tell()

    def _tell(self) -> None:
        assert self._request.groups is not None
        found = {"groups": self.simulation.groups, "sends": self.simulation.groups_with_sends}
        Path(self._request.groups).write_text(json.dumps(found))
        os._exit(0)


class Answered(AsItIs):
    """Runs the script for a prediction, and reports the script's memory use to the parent."""

    def __init__(self, request: Request) -> None:
        assert request.report is not None
        self._began = time.perf_counter()
        self._process = os.getpid()
        super().__init__(request)
        self._labels = BlockLabels(self.simulation, request.steps)
        folder = Path(request.report).with_name("processes")
        folder.mkdir()
        self._started = processes.StartedProcesses(request, self._process, str(folder))
        self._started.tell(self.simulation, self._labels, self._high_water)
        self._watchers: list[HighWaterMarks | BlockLabels | Surveyor]
        self._watchers = [self._high_water, self._labels]
        self._recorder = None if request.record is None else record(request.record)
        self._failed_rank: int | None = None

    def begin(self) -> None:
        """Begins as `AsItIs` does; the processes that the script starts report their memory too."""
        self._programs = StartedPrograms(self.simulation.watchers)
        simulate(self.simulation, self._install, processes.begin_started, asdict(self._started))
        self._bound()
        self._beat()

    def execute(self) -> BaseException | None:
        """Runs the script and measures its host memory. Returns the error that ended it."""
        self._host = HostWatch(self.simulation, self._labels)
        self._host.begin()
        ended_by = self._run()
        if isinstance(ended_by, KeyboardInterrupt):
            self.stops.interrupt()
        return ended_by

    def finish(self, ended_by: BaseException | None) -> None:
        """Waits for the processes that the script started, and writes the report."""
        if os.getpid() != self._process:  # a child that the script forked also arrives here
            return
        if not isinstance(ended_by, KeyboardInterrupt):
            self._started.wait()
        if self._recorder is not None and "torch" in sys.modules:
            self._recorder.stop()
        report = self._report(ended_by)
        assert self._request.report is not None
        with NewFile(self._request.report) as file:
            file.write(json.dumps(report).encode())
        if report["error"] == "out_of_memory":
            sys.exit(1)  # the exit status of the answer "out of memory"

    def _report(self, ended_by: BaseException | None) -> dict[str, Any]:
        seconds = time.perf_counter() - self._began
        host_use = self._host.stop()
        report = make_report(
            self.simulation, self._labels, self._high_water, self._request, ended_by,
            self.stops.stop, seconds,
        )  # fmt: skip
        if self._request.finds_least:
            add_least(self.simulation, report)
        self._tell_survey()
        own = processes.reported_by(self.simulation, report)
        report = self._started.add_to(own, self._failed_rank)
        report["prediction"] |= host_figures(host_use, self._started.folder, self._request)
        report["prediction"]["assumptions"] += map(asdict, self._programs.assumptions())
        return report

    def _install(self, torch: ModuleType) -> None:
        for watcher in self._watchers:
            watcher.install(torch)
        if self._recorder is not None:
            self._recorder.__enter__()

    def _beat(self) -> None:
        beat(self.simulation, self._labels)

    def _run(self) -> BaseException | None:
        return script_run.run_script(self._request)

    def _tell_survey(self) -> None:
        """Does nothing here. `Surveyed` and `Job` write a survey."""


class Surveyed(Answered):
    """Runs the script for a prediction, and surveys the parts of it that could be changed."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._surveyor = Surveyor(self.simulation, self._labels, request.room, request.varied)
        self._surveyor.listen()
        self._watchers.append(self._surveyor)

    def _tell_survey(self) -> None:
        assert self._request.survey is not None
        Path(self._request.survey).write_text(json.dumps(self._surveyor.survey().to_dict()))


class Job(Answered):
    """Runs a job for a prediction: starts the ranks and combines their reports."""

    def _beat(self) -> None:
        """Prints no progress, because the ranks print it."""

    def _run(self) -> BaseException | None:
        self._failed_rank, ended_by = run_ranks(self._request)
        return ended_by

    def _tell_survey(self) -> None:
        join_surveys(self._request)


def mode_of(request: Request) -> type[AsItIs]:
    """Returns the mode for a request."""
    if request.groups is not None:
        return Groups
    if request.report is None:
        return AsItIs
    if request.nproc_per_node is not None:
        return Job
    return Answered if request.survey is None else Surveyed
