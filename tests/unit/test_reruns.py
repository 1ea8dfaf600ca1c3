"""Tests what plimsoll says about further runs of a script."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from plimsoll.base.units import GiB
from plimsoll.prediction.assumed import SIZES_BY_DATA, Assumed
from plimsoll.prediction.child.printing import is_printing
from plimsoll.prediction.reruns import Reruns
from tests.unit.test_fit import prediction

if TYPE_CHECKING:
    from plimsoll.prediction.request import Request

REQUEST = cast("Request", SimpleNamespace(title="train.py"))
MASKS = [Assumed(SIZES_BY_DATA[0], "aten::nonzero", "train.py:3 <module>", 1)]


def test_a_further_run_says_its_number_its_reason_and_the_verdict() -> None:
    told: list[str] = []
    found = replace(prediction(GiB), assumptions=MASKS)
    reruns = Reruns.of(REQUEST, found, told.append)
    reruns.begin("with other data")
    reruns.begin("with the least data")
    assert told == [
        "run 2 of 3 of train.py, with other data; it fits on T4",
        "run 3 of 3 of train.py, with the least data; it fits on T4",
    ]


def test_runs_beside_each_other_are_told_together_after_the_one_without_a_limit() -> None:
    told: list[str] = []
    found = replace(prediction(100 * GiB), assumptions=MASKS)
    reruns = Reruns.of(REQUEST, found, told.append)
    reruns.begin("without a limit")
    reruns.begin("with other data", runs=2)
    assert told == [
        "run 2 of 4 of train.py, without a limit; it does not fit on T4",
        "runs 3 to 4 of 4 of train.py, with other data; it does not fit on T4",
    ]


def test_an_operation_belongs_to_printing_if_pytorchs_printer_called_it() -> None:
    script = ("train.py", 3, "<module>")
    printer = ("/site-packages/torch/_tensor_str.py", 154, "__init__")
    assert is_printing([printer, script])
    assert not is_printing([script])
    assert not is_printing([("my_torch/tensor_str.py", 1, "f"), script])
