"""Tests that plimsoll's watchers do not change a running script, even if they fail."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plimsoll.prediction import child_process
from plimsoll.prediction.assumed import WATCHER_FAILED
from plimsoll.prediction.options import Options
from plimsoll.prediction.predict import predict
from plimsoll.prediction.text import prediction_text
from tests.simulated import PROGRAMS, on_simulated_gpus
from tests.waiting import without_beats

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.prediction.results import Prediction

pytest.importorskip("torch")

PREDICTED = PROGRAMS / "prediction"
LOOKS = {
    "calls of backward()", "calls of cross_entropy", "models", "peaks before a reset",
    "the batches of loaders", "the calls of a step", "the script's options",
    "the tensors of modules", "the tensors of optimizers", "the time of steps",
}  # fmt: skip
"""The names of some watchers that the script watched.py certainly triggers."""


def surveyed(tmp_path: Path) -> Prediction:
    request = Options().request(str(PREDICTED / "watched.py"), ["--steps", "2"])
    return child_process.run(replace(request, survey=str(tmp_path / "survey.json")))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["looks", "installs"])
def test_a_program_goes_on_as_without_watchers_that_fail_and_the_report_names_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    right = surveyed(tmp_path)
    printed = without_beats(capfd.readouterr().err)
    assert not any(each.what == WATCHER_FAILED for each in right.assumptions)
    failing = str(PREDICTED / "failing_watchers.py")
    monkeypatch.setattr(
        child_process, "_command", lambda file: [sys.executable, "-P", failing, kind, str(file)]
    )
    found = surveyed(tmp_path)
    assert without_beats(capfd.readouterr().err) == printed
    assert found.peak_reserved_bytes == right.peak_reserved_bytes
    assert found.events == right.events
    failed = {each.operation for each in found.assumptions if each.what == WATCHER_FAILED}
    names = {each.partition(" (ArithmeticError: made to fail)")[0] for each in failed}
    expected = LOOKS if kind == "looks" else {"modules and optimizers", "resets of peaks"}
    assert names >= expected
    lines = prediction_text(found).splitlines()
    assert sum(WATCHER_FAILED in line for line in lines) == 1


@pytest.mark.long
def test_parameters_that_get_their_shape_later_are_parameters(tmp_path: Path) -> None:
    path = tmp_path / "lazy.py"
    path.write_text(
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.LazyLinear(2048), torch.nn.LazyLinear(8)).cuda()\n"
        "net(torch.randn(4, 1024, device='cuda'))\n"
    )
    found = predict(str(path))
    assert found.by_category["parameters"] >= 2048 * 1024 * 4
    assert not any(each.what == WATCHER_FAILED for each in found.assumptions)


@on_simulated_gpus()
def test_a_variable_that_is_looked_at_is_not_kept_alive() -> None:
    import weakref

    import torch

    from plimsoll.torch.simulated.program_frames import variables_of

    def step() -> bool:
        x = torch.ones(4, device="cuda")
        last = weakref.ref(x)
        assert "x" in variables_of(sys._getframe())
        assert last() is x
        del x
        return last() is None

    assert step()
