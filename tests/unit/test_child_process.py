"""Tests a script's process, as its parent sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from plimsoll.prediction import child_process
from plimsoll.prediction.request import Request
from plimsoll.torch.simulated.setup import Setup


@dataclass
class EndsAsTheInterruptComes:
    """A process that answers at the moment when its parent is interrupted."""

    report: Path
    waits: list[float | None] = field(default_factory=list)

    def wait(self, seconds: float | None = None) -> int:
        self.waits.append(seconds)
        if len(self.waits) == 1:
            self.report.write_text("{}")
            raise KeyboardInterrupt
        return 0

    def poll(self) -> int:
        return 0


def test_an_interrupt_is_not_lost_where_a_run_beside_others_ends_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "_prepare", lambda _: None)
    reports = []

    def command(file: int) -> list[str]:
        text = Path(f"/proc/self/fd/{file}").read_text()
        reports.append(Path(Request.from_json(text).report or ""))
        return []

    def popen(*_: Any, **__: Any) -> Any:
        return EndsAsTheInterruptComes(reports[-1])

    monkeypatch.setattr(child_process, "_command", command)
    monkeypatch.setattr("subprocess.Popen", popen)
    request = Request("train.py", [], Setup(("T4",)), keep_writes=True)
    with (
        child_process.started(request, shows_output=False, is_aside=True) as answer,
        pytest.raises(KeyboardInterrupt),
    ):
        answer()
