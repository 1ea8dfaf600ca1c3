"""Tests that every output format of an answer has the answer's caveats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll.base.units import GiB, KiB, MiB
from plimsoll.cli.predict import _answer
from plimsoll.prediction.assumed import STARTED_PROGRAM, Assumed
from plimsoll.prediction.caveats import unsteady_text
from plimsoll.prediction.parts import FewerSteps, Stopped
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.text import short_text, verdict_words
from plimsoll.prediction.trials.kept_apart import KeptApart
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.wall import Refused
from tests.unit.test_fit import prediction

FITS = prediction(2 * GiB)
CASES = {
    "--steps 4 ended no training loop": replace(FITS, fewer_steps=FewerSteps(4, 9, 9, False)),
    "Memory that only later steps take is not counted": replace(
        FITS, fewer_steps=FewerSteps(4, 4, 9, True)
    ),
    "stopped at train.py:3: interrupted": replace(
        FITS, stopped=Stopped("interrupted", "train.py:3", 5, 9)
    ),
    "Memory grows each step by 1.00 MiB: the answer holds for 12 steps": replace(
        FITS, step_peaks_bytes=[GiB + step * MiB for step in range(12)]
    ),
    "Memory use still changes": replace(
        FITS, step_peaks_bytes=[GiB, GiB, GiB, GiB, 2 * GiB, 3 * GiB]
    ),
    "requests that failed, after which the script went on: 2": replace(FITS, num_ooms=2),
    "in pieces that are too small": replace(FITS, fits=False),
    "does not see the Python programs that the script started: python other.py": replace(
        FITS, assumptions=[Assumed(STARTED_PROGRAM, "python other.py", None, 1)]
    ),
    "plimsoll refused 3 writes": replace(
        FITS, kept_apart=KeptApart(Kind.LAYER, [Refused("/etc/a", "python", 3)])
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_short_answer_and_json_say_what_limits_the_verdict(sentence: str) -> None:
    found = CASES[sentence]
    assert sentence in short_text(found)
    caveats = verdict_words(found, [])["caveats"]
    assert isinstance(caveats, list)
    assert [sentence in each for each in caveats] == [True]


def test_an_answer_that_nothing_limits_has_no_such_sentence() -> None:
    assert verdict_words(FITS, [])["caveats"] == []
    assert len(short_text(FITS).splitlines()) == 1


def test_for_several_cards_a_sentence_names_the_cards_that_it_is_about() -> None:
    def on(gpu: str, num_ooms: int) -> Prediction:
        return replace(FITS, gpu=gpu, num_ooms=num_ooms, fewer_steps=FewerSteps(4, 9, None, False))

    lines = list(_answer([on("T4", 1), on("L4", 0)]))
    assert "T4: requests that failed, after which the script went on: 1" in lines
    assert sum(line.startswith("--steps 4 ended no training loop") for line in lines) == 1


@pytest.mark.parametrize(
    ("peaks", "sentence"),
    [
        (
            [GiB, GiB, 2 * GiB],
            "Memory use still changes: the last steps peaked at 1.00 GiB, 1.00 GiB, 2.00 GiB.",
        ),
        (
            [GiB, GiB + KiB, GiB + 3 * KiB],
            "Memory use still changes: of the last steps one peaked at 1.00 GiB, and each later "
            "one at 1.00 KiB more, 2.00 KiB more.",
        ),
        (
            [GiB, GiB, *[2 * GiB] * 4],
            "Memory use still changed in step 3 of 6: its peak was 2.00 GiB, after 1.00 GiB.",
        ),
    ],
)
def test_a_change_of_memory_is_said_with_sizes_that_differ(peaks: list[int], sentence: str) -> None:
    assert unsteady_text(peaks) == sentence
