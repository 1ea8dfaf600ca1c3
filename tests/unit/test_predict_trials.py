"""Tests when `predict` also runs a script without `torch.compile`, and how it uses that run."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.units import MiB
from plimsoll.prediction.compiled_use import CompiledFunction, CompiledUse, EagerUse
from plimsoll.prediction.options import Options
from plimsoll.prediction.parts import Stopped
from tests.unit.test_fit import prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction

pytest.importorskip("torch")
COMPILED = CompiledUse([CompiledFunction("a.py:1 f", 1, 0, None)], {}, 0, 1, [], 1)
EAGER = replace(prediction(6 * MiB), step_seconds=0.5)


class Trials:
    """Gives `predict` prepared results, so that no process runs the script.

    The first run gives `found`. The run without `torch.compile` gives `eager`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
        self.ran: list[str] = []
        self.found: Prediction = replace(prediction(4 * MiB), compiled=COMPILED)
        self.eager: Prediction | Exception = EAGER
        self.refusal: Exception | None = None
        self._script = script
        module = sys.modules["plimsoll.prediction.predict"]
        monkeypatch.setattr(module, "run", self._run)
        monkeypatch.setattr(module, "started", self._started)
        self._predict: Any = module.predict_request

    def predict(self, text: str = "torch.compile(f)", **options: Any) -> Prediction:
        self._script.write_text(text)
        found: Prediction = self._predict(Options(gpu="T4", **options).request(self._script, []))
        return found

    def _run(self, request: Request, **_: Any) -> Prediction:
        assert not request.setup.is_eager
        self.ran.append("first")
        return self.found

    @contextmanager
    def _started(self, request: Request, **_: Any) -> Iterator[Callable[[], Prediction]]:
        assert request.setup.is_eager
        assert not request.keep_writes
        if self.refusal is not None:
            raise self.refusal
        self.ran.append("eager")

        def answer() -> Prediction:
            if isinstance(self.eager, Exception):
                raise self.eager
            return self.eager

        yield answer


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trials:
    return Trials(monkeypatch, tmp_path / "script.py")


def eager_of(found: Prediction) -> EagerUse | None:
    assert found.compiled is not None
    return found.compiled.eager


def test_a_script_that_compiles_is_run_eagerly_beside_the_first(trials: Trials) -> None:
    assert eager_of(trials.predict()) == EagerUse(6 * MiB, 6 * MiB, 0.5)
    assert trials.ran == ["eager", "first"]


@pytest.mark.parametrize("text", ["import trainer", "re.compile('x')"])
def test_one_that_does_not_say_so_is_run_eagerly_afterwards(trials: Trials, text: str) -> None:
    assert eager_of(trials.predict(text)) is not None
    assert trials.ran == ["first", "eager"]


def test_no_trial_reads_what_another_writes(trials: Trials) -> None:
    assert eager_of(trials.predict(keep_writes=True)) is not None
    assert trials.ran == ["first", "eager"]


def test_what_compiles_nothing_is_compared_with_nothing(trials: Trials) -> None:
    trials.found = prediction(4 * MiB)
    assert trials.predict("import trainer").compiled is None
    assert trials.ran == ["first"]


@pytest.mark.parametrize("failure", [ScriptError("script.py", 1), InputError("no report")])
def test_an_eager_trial_that_fails_leaves_the_answer(trials: Trials, failure: Exception) -> None:
    trials.eager = failure
    assert eager_of(trials.predict()) is None


def test_one_that_cannot_be_started_leaves_the_answer(trials: Trials) -> None:
    trials.refusal = InputError("nothing can be thrown away here")
    assert eager_of(trials.predict()) is None


def test_what_was_stopped_is_compared_with_nothing(trials: Trials) -> None:
    trials.eager = replace(EAGER, stopped=Stopped("--at-most-events", "script.py:1", 1, 1))
    assert eager_of(trials.predict()) is None
