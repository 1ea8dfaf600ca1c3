"""Runs tests with a memory budget in a process with a simulated GPU, if there is no real GPU.

A test that ends the process counts as failed. A new process then runs the tests that had not yet
begun.

The process with the simulated GPU runs pytest too, with the same configuration but not the same
options. It writes its reports of each test to a file, and the original process passes them on as
its own. A separate process is needed for two reasons. The simulation must begin before PyTorch is
imported, and all code in a process sees the simulated GPUs. All other tests run in the original
process and see no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.engine.real_gpus import count_gpus
from plimsoll.integrations import report_writer
from plimsoll.torch.building.versions import is_cuda_build
from plimsoll.torch.simulated.start import running

if TYPE_CHECKING:
    from collections.abc import Sequence


def has_gpu() -> bool:
    """Returns whether PyTorch finds a GPU in this process, real or simulated.

    Raises:
        InputError: If PyTorch is not installed.
    """
    return running() is not None or (is_cuda_build() and count_gpus() > 0)


class SimulatedTests:
    """A pytest plug-in that runs the given tests in another process.

    Args:
        config: The configuration of this process.
        items: The tests; when pytest reaches the first one, all of them run.
        card: The card to simulate.

    Raises:
        InputError: If the card is unknown.
    """

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item], card: str) -> None:
        gpu_profile(card)
        self._config = config
        self._card = card
        self._names = [item.nodeid for item in items]
        # A pytest-xdist worker gets its tests one by one, without knowing the next ones.
        self._one_by_one = hasattr(config, "workerinput")
        self._reports: dict[str, list[pytest.TestReport]] = {}  # the reports of each begun test
        self._endings: dict[str, str] = {}  # the exit status and output of each test's process

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Reports the result of this test.

        If the test has no result yet, first runs it, together with all other tests without a
        result. A pytest-xdist worker runs only this test.
        """
        if item.nodeid not in self._names:
            return None
        while item.nodeid not in self._reports:
            waiting = [name for name in self._names if name not in self._reports]
            self._run([item.nodeid] if self._one_by_one else waiting)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = self._reports[item.nodeid]
        if not any(report.when == "teardown" for report in reports):
            reports = [*reports, self._lost(item)]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, names: Sequence[str]) -> None:
        """Runs tests in a new process and reads their reports.

        A later call runs the tests that did not begin. If none began, all of them count as
        begun. Otherwise the caller would start one failing process after another.
        """
        with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
            file = Path(folder) / "reports"
            done = subprocess.run(  # noqa: S603
                self._command(names),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                env={**os.environ, report_writer.FILE: str(file)},
            )
            written = file.read_text().splitlines() if file.exists() else []
        begun: dict[str, list[pytest.TestReport]] = {}
        for line in written:
            with suppress(json.JSONDecodeError):  # the process ended while it wrote the line
                data = json.loads(line)
                if isinstance(data, str):
                    begun.setdefault(data, [])
                    continue
                report = self._config.hook.pytest_report_from_serializable(
                    config=self._config, data=_with_tuples(data)
                )
                begun.setdefault(report.nodeid, []).append(report)
        if begun.keys().isdisjoint(names):
            begun |= {name: [] for name in names}
        self._reports |= begun
        self._endings |= dict.fromkeys(begun, f"status {done.returncode}\n{done.stdout}")

    def _command(self, names: Sequence[str]) -> list[str]:
        root = self._config.rootpath
        # pytest's configuration can add options to this command line. If it adds -m or -k, which
        # select tests, the empty -m and -k here override them.
        options = [
            "-p",
            report_writer.__name__,
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            "-k",
            "",
            "--rootdir",
            str(root),
        ]
        if self._config.inipath is not None:
            options += ["-c", str(self._config.inipath)]
        if self._config.pluginmanager.hasplugin("xdist"):
            options += ["-n", "0"]
        tests = [f"{root}{os.sep}{name}" for name in names]
        simulate = ["plimsoll", "run", "--simulate", self._card, "-m", "pytest"]
        return [sys.executable, "-m", *simulate, *options, *tests]

    def _lost(self, item: pytest.Item) -> pytest.TestReport:
        """Makes the report of a test whose process ended before the test did."""
        ending = self._endings[item.nodeid]
        text = f"the process with the simulated GPU ended before this test did: {ending}"
        return pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", text, "call"
        )


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    """Restores the tuples of a report, which JSON has turned into lists."""
    places = {key: data[key] for key in ("location", "longrepr") if isinstance(data[key], list)}
    return data | {key: tuple(place) for key, place in places.items()}
