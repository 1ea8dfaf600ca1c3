"""Tests trial runs of changed scripts. Prepared answers replace the processes that would run."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.base.units import MiB
from plimsoll.prediction.fitting import attempts
from plimsoll.prediction.fitting.attempts import Attempts
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.request import Request
from plimsoll.prediction.survey import AllocatorUse, Survey
from plimsoll.torch.simulated.setup import Setup
from tests.unit.tiny_script import prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.results import Prediction

ROOM = 1000 * MiB


@pytest.mark.parametrize(
    ("kind", "reserved_mib", "fitting"),
    [
        # To run in ROOM (1000 MiB), a program that reserves 1100 MiB needs an allocator that
        # releases cached segments before memory runs out.
        ("offload", 1100, ["elastic"]),
        ("offload", 1000, ["native", "elastic"]),
        ("optimizer", 1100, ["native", "elastic"]),
    ],
)
def test_what_copies_to_the_host_decide_is_left_to_the_allocator_that_waits(
    monkeypatch: pytest.MonkeyPatch, kind: str, reserved_mib: int, fitting: list[str]
) -> None:
    uses = [
        AllocatorUse(name, "", 900 * MiB, reserved_mib * MiB, fits=True)
        for name in ("native", "elastic")
    ]

    @contextmanager
    def started(request: Request, **_: Any) -> Iterator[Callable[[], Prediction]]:
        assert request.survey is not None
        Path(request.survey).write_text(json.dumps(Survey(allocators=uses).to_dict()))
        yield lambda: prediction(900 * MiB, reserved_mib * MiB, room=ROOM, seconds=1.0)

    monkeypatch.setattr(attempts, "started", started)
    trials = Attempts(
        Request("train.py", [], Setup(("T4",))), Path("train.py"), ScriptText.of(""), ROOM
    )
    (found,) = trials.run([(Change(kind, "a change"),)])
    assert [use.allocator for use in found.allocators() if use.fits] == fitting
