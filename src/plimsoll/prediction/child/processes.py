"""The processes that a predicted program starts: those that use a GPU tell what they took.

Each has a file in a folder. It is made when the process first uses a GPU, so that one that is
killed is known of, and replaced when the process ends, by the report that the program makes too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.prediction.child.answer import make_report
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.labels import BlockLabels
from plimsoll.prediction.parts import ProcessUse
from plimsoll.prediction.request import Request
from plimsoll.session.simulate import simulate_started

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


@dataclass(frozen=True)
class StartedProcesses:
    """What the processes of one program write, and where. It goes to each of them.

    Attributes:
        request: What the program was asked for.
        process: The program's own.
        folder: Where the files are.
    """

    request: Request
    process: int
    folder: str

    def watch(self, simulation: Simulation) -> None:
        """In a process that was started, before PyTorch is imported: observe it; let it tell."""
        labels = BlockLabels(simulation)
        high_water = HighWaterMarks(simulation)

        def install() -> None:
            torch = sys.modules["torch"]
            high_water.install(torch)
            labels.install(torch)

        simulation.after_import(install)
        self.tell(simulation, labels, high_water)

    def tell(self, simulation: Simulation, labels: BlockLabels, high_water: HighWaterMarks) -> None:
        """Let this process, and those forked from it, tell what they use; not the program's own."""
        began = time.perf_counter()

        def make_note() -> None:
            process = os.getpid()
            if process == self.process:
                return
            path = Path(self.folder) / f"{process}-{secrets.token_hex(4)}.json"
            _write(path, {"process": process, "report": None, "uses": []})
            Finalize(None, finish, (path,), exitpriority=0)

        def finish(path: Path) -> None:
            # `multiprocessing` ends a process while the error that ended its work is still there.
            error = sys.exc_info()[1]
            seconds = time.perf_counter() - began
            report = make_report(simulation, labels, high_water, self.request, error, None, seconds)
            uses = uses_of(simulation, high_water)
            told = {"process": os.getpid(), "report": report, "uses": [asdict(u) for u in uses]}
            _write(path, told)

        simulation.on_first_use(make_note)

    def add_to(self, report: dict[str, Any], own: list[ProcessUse]) -> dict[str, Any]:
        """The program's report, with those of the processes that it started.

        Where there are any, it is that of the process that reserved the most. Its error is "killed"
        where a GPU was used, and nobody lived to say how much.

        Args:
            report: As `make_report` makes it.
            own: What the program's own process used.
        """
        told = [json.loads(path.read_text()) for path in sorted(Path(self.folder).glob("*.json"))]
        if not told:
            return report
        mine = report["prediction"]
        reports = [each["report"] for each in told if each["report"] is not None]
        children = [each["prediction"] for each in reports]
        known = [*children, *([mine] if mine["uses_cuda"] else [])]
        if not known:
            return {**report, "error": report["error"] or "killed"}
        failures = [each["out_of_memory"] for each in (mine, *children) if each["out_of_memory"]]
        largest = max(known, key=_peaks)
        prediction = {
            **largest,
            "fits": not failures,
            "out_of_memory": failures[0] if failures else None,
            "num_ooms": sum(each["num_ooms"] for each in (mine, *children)),
            "other_gpus": [] if failures else largest["other_gpus"],
            "assumptions": _merged([mine, *children]),
            "events": sum(each["events"] for each in (mine, *children)),
            "seconds": mine["seconds"],
            "processes": [asdict(use) for use in own] + _uses(told),
        }
        return {
            **report,
            "prediction": prediction,
            "error": "out_of_memory" if failures else report["error"],
        }


def begin_started(values: dict[str, Any]) -> None:
    """In a process that was started: have simulated GPUs, and tell what it uses of them.

    Args:
        values: A `StartedProcesses`, as a dictionary.
    """
    request = Request.from_dict(values["request"])
    started = StartedProcesses(**{**values, "request": request})
    simulate_started(request.setup, started.watch)


def uses_of(simulation: Simulation, high_water: HighWaterMarks) -> list[ProcessUse]:
    """What this process used of each GPU."""
    return [
        ProcessUse(
            os.getpid(),
            device,
            high_water.of(device).allocated_bytes,
            high_water.of(device).reserved_bytes,
        )
        for device in sorted(simulation.contexts)
    ]


def wait_for_processes() -> None:
    """Wait for those that `multiprocessing` started, as Python does at a program's end."""
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join()


def _peaks(prediction: dict[str, Any]) -> tuple[int, int]:
    return prediction["peak_reserved_bytes"], prediction["peak_allocated_bytes"]


def _uses(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    uses: list[dict[str, Any]] = []
    for each in told:
        killed = [] if each["report"] else [asdict(ProcessUse(each["process"], None, None, None))]
        uses += each["uses"] or killed
    return uses


def _merged(predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All assumptions, those of several processes counted together."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for prediction in predictions:
        for assumed in prediction["assumptions"]:
            key = (assumed["what"], assumed["operation"])
            before = merged.get(key, {"count": 0})
            count = before["count"] + assumed["count"]
            size = max(before.get("bytes") or 0, assumed["bytes"] or 0) or None
            merged[key] = {**assumed, **before, "count": count, "bytes": size}
    return list(merged.values())


def _write(path: Path, values: dict[str, Any]) -> None:
    with suppress(InputError), NewFile(path, force=True) as file:  # the answer was given without it
        file.write(json.dumps(values).encode())
