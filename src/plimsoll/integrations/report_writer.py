"""A pytest plug-in for a process with a simulated GPU: writes reports for the parent process.

Each line is JSON: a report, or the name of a test that begins. If a test begins and no report of
its teardown follows, the test has ended the process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FILE = "PLIMSOLL_TEST_REPORTS"
"""The environment variable that names the file of the reports."""


class ReportWriter:
    """Writes a line for each report and for each test that begins.

    Args:
        config: The configuration of this process.
        file: The path of the file.
    """

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._config = config
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes a report as a line."""
        data: Any = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        self._write(data)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Writes the name of a test that begins."""
        self._write(nodeid)

    def _write(self, line: Any) -> None:
        with self._file.open("a") as file:
            print(json.dumps(line), file=file)


def pytest_configure(config: pytest.Config) -> None:
    """Registers a ReportWriter.

    Also removes the variable `FILE` from the environment, so that subprocesses of tests write no
    reports.
    """
    config.pluginmanager.register(ReportWriter(config, Path(os.environ.pop(FILE))))
