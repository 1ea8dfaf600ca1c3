"""Collects reports of the memory that the processes of a predicted program use on GPUs.

Each process that uses a GPU has a file in a folder. plimsoll makes the file when the process first
uses a GPU, and writes the report into it when the process ends. If a file has no report, its
process was killed. The memory of a killed process is known from the files of the cards
(`cards.py`), which are always up to date.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import sys
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.base.telemetry.job import launched_as
from plimsoll.prediction.child.answer import make_report
from plimsoll.prediction.child.cards import card_files, read_cards
from plimsoll.prediction.child.first_failure import Failure, first_failure, note_failure
from plimsoll.prediction.child.guests import causes_of_job
from plimsoll.prediction.child.heartbeat import beat
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.host_report import tell_host_use
from plimsoll.prediction.child.host_watch import HostWatch
from plimsoll.prediction.child.labels import BlockLabels
from plimsoll.prediction.child.process_reports import (
    ProcessReport,
    process_uses,
    rank_reports,
    rank_use,
    shared_cards,
)
from plimsoll.prediction.child.script_ending import line_of
from plimsoll.prediction.child.serving_ranks import lacks_memory, serving_of_all
from plimsoll.prediction.child.stops import Stop
from plimsoll.prediction.child.survey.job_survey import first_ranks_surveyor, leave_survey
from plimsoll.prediction.child.verdict import fullest, verdict
from plimsoll.prediction.request import Request
from plimsoll.torch.session.record import rank_recorder
from plimsoll.torch.session.simulate import simulate_started

if TYPE_CHECKING:
    from plimsoll.prediction.child.survey.surveyor import Surveyor
    from plimsoll.torch.simulated.simulation import Simulation


@dataclass(frozen=True)
class StartedProcesses:
    """Writes and reads the reports of the processes of one program.

    Each of these processes has its own `StartedProcesses`, with the same attributes.

    Attributes:
        request: The request for the program.
        process: The process id of the program's first process; the others descend from it.
        folder: The folder of the reports.
    """

    request: Request
    process: int
    folder: str

    def watch(self, simulation: Simulation) -> None:
        """Observes the calling process, and makes it write a report when it ends.

        Call this before the process imports PyTorch.
        """
        note_failure(self.folder, simulation.watchers)
        labels = BlockLabels(simulation, self.request.steps)
        high_water = HighWaterMarks(simulation)
        surveyor = first_ranks_surveyor(self.request, simulation, labels)
        if surveyor is not None:
            surveyor.listen()

        recorder = self.request.record and rank_recorder(Path(self.request.record))

        def install() -> None:
            torch = sys.modules["torch"]
            high_water.install(torch)
            labels.install(torch)
            if recorder:
                recorder.__enter__()
                Finalize(None, recorder.stop, exitpriority=3)
            if surveyor is not None:
                surveyor.install(torch)

        simulation.after_import(install)
        self.tell(simulation, labels, high_water, surveyor)
        host = HostWatch(simulation, labels)
        host.begin()
        Finalize(None, tell_host_use, (host, self.folder), exitpriority=1)

    def tell(
        self,
        simulation: Simulation,
        labels: BlockLabels,
        high_water: HighWaterMarks,
        surveyor: Surveyor | None = None,
    ) -> None:
        """Makes this process and its forks write reports of their memory use.

        The program's own process is an exception: `modes.Answered` reports its memory use.
        """
        began = time.perf_counter()
        simulation.share_cards(card_files(self.folder))

        def make_note() -> None:
            process = os.getpid()
            if process == self.process:
                return
            path = Path(self.folder) / f"{process}-{secrets.token_hex(4)}.json"
            _write(path, reported_by(simulation, None))
            Finalize(None, finish, (path,), exitpriority=0)
            if launched_as("RANK") == 0:
                beat(simulation, labels)

        def finish(path: Path) -> None:
            error = _ended_by()
            stop = None
            if isinstance(error, KeyboardInterrupt):
                stop = Stop("interrupted", line_of(error))
            seconds = time.perf_counter() - began
            report = make_report(simulation, labels, high_water, self.request, error, stop, seconds)
            _write(path, reported_by(simulation, report))
            if report["error"] is None and stop is None:
                leave_survey(self.request, simulation, surveyor, report["device"])

        guarded = simulation.watchers.guarded
        simulation.on_first_use(guarded("processes that use a GPU", make_note))

    @property
    def reports(self) -> list[ProcessReport]:
        """The reports so far."""
        files = sorted(Path(self.folder).glob("*.json"))
        return [ProcessReport(**json.loads(file.read_text())) for file in files]

    def wait(self) -> None:
        """Waits for the processes that `multiprocessing` started, as Python does when it exits.

        Like Python, this first calls the finalizers of the program's objects, because some of them
        end processes: a serving engine ends its workers in this way. Daemons are not waited for.
        """
        reported = {each.process for each in self.reports}
        started = multiprocessing.active_children()
        waiting = [child for child in started if not child.daemon or child.pid in reported]
        if waiting:
            weakref.finalize._exitfunc()  # type: ignore[attr-defined]
        for child in waiting:
            if not child.daemon:
                child.join()

    def add_to(self, own: ProcessReport, failed_rank: int | None = None) -> dict[str, Any]:
        """Returns the program's report, combined with those of the processes that it started.

        If other processes used GPUs, the figures are those of the rank with the least headroom. In
        a program without ranks, they are those of the process with the most memory on the fullest
        card. If that rank or process was killed before its memory use was known, the error is
        "killed". The verdict takes all processes into account.

        Args:
            own: The report of the program's own process.
            failed_rank: The rank whose failure ended the job, if any.
        """
        assert own.report is not None
        report, started = own.report, self.reports
        if report["error"] == "other":
            first = first_failure(self.folder, None if failed_rank is None else {failed_rank})
            report = {**report, **_failure(started, first, failed_rank)}
        reports = [own, *started] if report["prediction"]["uses_cuda"] else started
        if not reports:
            return report
        cards = read_cards(self.folder)
        ranks = rank_reports(reports)
        others = [each for each in reports if all(each is not rank for rank in ranks)]
        most, prediction = fullest(own, reports, ranks, cards)
        if prediction is None:
            return {**report, "error": report["error"] or "killed"}
        everybody = _predictions([own, *started])
        failures = [
            each["out_of_memory"] for each in everybody if each["out_of_memory"] is not None
        ]
        prediction = {
            **prediction,
            "out_of_memory": failures[0] if failures else None,
            "num_ooms": sum(each["num_ooms"] for each in everybody),
            "assumptions": _merged([prediction, *everybody]),
            "events": sum(each["events"] for each in everybody),
            "seconds": report["prediction"]["seconds"],
            "processes": process_uses(others, cards) if started else [],
            "worst_rank": most.rank if ranks else None,
            "world_size": self._world_size(len(ranks)),
            "ranks": [asdict(rank_use(each, cards)) for each in ranks],
            "shared_cards": [asdict(card) for card in shared_cards(ranks, cards)],
            "causes": causes_of_job(prediction, ranks, cards),
            "serving": serving_of_all(prediction["serving"], everybody),
        }
        prediction |= verdict(prediction, reports, cards, self.request)
        if failures or lacks_memory(prediction["serving"]):
            return {**report, "prediction": prediction, "error": "out_of_memory"}
        return {**report, "prediction": prediction}

    def _world_size(self, ran: int) -> int:
        """Returns the number of all ranks, given how many ran."""
        local = self.request.nproc_per_node
        return max(1, ran) if local is None else local * self.request.nnodes


def begin_started(values: dict[str, Any]) -> None:
    """Simulates GPUs in this process, and makes the process report its memory use.

    The program started this process.

    Args:
        values: A `StartedProcesses`, as a dictionary.
    """
    request = Request.from_dict(values["request"])
    started = StartedProcesses(**{**values, "request": request})
    simulate_started(request.setup, started.watch)


def reported_by(simulation: Simulation, report: dict[str, Any] | None) -> ProcessReport:
    """Returns the report that this process writes to its file.

    `report` is None as long as the process runs.
    """
    rank = launched_as("RANK") if simulation.rank is None else simulation.rank
    return ProcessReport(
        process=os.getpid(),
        rank=rank,
        has_joined=simulation.rank is not None,
        host=launched_as("GROUP_RANK") or 0,
        report=report,
        cards=[(device, Path(path).name) for device, path in simulation.card_files.items()],
    )


def _ended_by() -> BaseException | None:
    """Returns the error that ends this process; None if no error ends it."""
    # `multiprocessing` runs finalizers while the error that ended the process's work is still set.
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _predictions(reports: list[ProcessReport]) -> list[dict[str, Any]]:
    return [each.prediction for each in reports if each.prediction is not None]


def _failure(
    reports: list[ProcessReport], first: Failure | None, rank: int | None
) -> dict[str, Any]:
    """Returns the entries of a report that say why a process of the program failed.

    Args:
        reports: The reports of the processes.
        first: The first error of a rank, if any was noted.
        rank: The failed rank; ignored if `first` is given. If `first` and `rank` are None, the
            first report with the error "other" is used.
    """
    rank = rank if first is None else first.rank
    for each in reports:
        if each.report is None or each.report["error"] != "other" or rank not in (None, each.rank):
            continue
        found = {
            name: each.report[name]
            for name in ("unknown_read", "missed_network", "missing", "device_failure", "reason")
        }
        if found["reason"] is not None and each.rank is not None:
            found["reason"] = f"rank {each.rank}: {found['reason']}"
        return found
    if first is not None and first.reason is not None:
        return {"reason": f"rank {first.rank}: {first.reason}", "missing": first.missing}
    return {} if rank is None else {"reason": f"rank {rank} failed"}


def _merged(predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges the assumptions of all processes.

    Assumptions with the same `what` and `operation` become one, and their counts are added.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for prediction in predictions:
        for assumed in prediction["assumptions"]:
            key = (assumed["what"], assumed["operation"])
            before = merged.get(key, {"count": 0})
            count = before["count"] + assumed["count"]
            size = max(before.get("bytes") or 0, assumed["bytes"] or 0) or None
            merged[key] = {**assumed, **before, "count": count, "bytes": size}
    return list(merged.values())


def _write(path: Path, reported: ProcessReport) -> None:
    with suppress(InputError), NewFile(path, force=True) as file:  # the file may not be writable
        file.write(json.dumps(asdict(reported)).encode())
