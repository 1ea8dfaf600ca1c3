"""Tests the text of predictions, fits and plans at every width of a terminal.

The answer comes first, and important columns are never left out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.cli.predict import _next_step
from plimsoll.cli.program import Program
from plimsoll.prediction.fitting.parts import Trial
from plimsoll.prediction.fitting.plan_text import plan_text
from plimsoll.prediction.fitting.results import Fit
from plimsoll.prediction.fitting.text import fit_text
from plimsoll.prediction.parts import ProcessUse
from plimsoll.prediction.rank_use import RankUse
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.text import prediction_text
from tests.unit.test_fit import prediction
from tests.unit.test_plan_text import plan_of

MiB, GiB = 1 << 20, 1 << 30
WIDTHS = (60, 80, 120, 200)


def job() -> Prediction:
    """Returns the prediction of a job with two kinds of ranks on eight machines."""
    ranks = [
        RankUse(rank, rank // 8, rank % 8, 3 * GiB, 4 * GiB, 6 * GiB, GiB, fits=True, stands_for=32)
        for rank in (0, 32)
    ]
    return replace(prediction(4 * GiB), ranks=ranks, worst_rank=32)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_job_or_a_plan_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, prediction_text(job(), width).splitlines())) <= width
    lines = plan_text(plan_of(), width).plain.splitlines()
    assert [line for line in lines if len(line) > width] == []


def test_a_narrow_table_of_ranks_keeps_what_is_on_the_card_and_whether_it_fits() -> None:
    def heads(width: int | None) -> list[str]:
        return prediction_text(job(), width).splitlines()[2 if width == 60 else 1].split()

    kept = ["rank", "stands", "for", "host:GPU"]
    assert heads(None) == [*kept, "allocated", "reserved", "NCCL", "on", "the", "card", "fits"]
    assert heads(80) == [*kept, "allocated", "reserved", "NCCL", "on", "the", "card", "fits"]
    assert heads(60) == [*kept, "reserved", "on", "the", "card", "fits"]


def test_the_verdict_comes_before_the_processes() -> None:
    used = [ProcessUse(0, MiB, 2 * MiB, None, None, process) for process in (7, 8)]
    answer, whose = str(replace(prediction(2 * MiB), processes=used)).splitlines()[:2]
    assert answer.startswith("script.py fits on T4: ")
    assert whose.startswith("2 processes used simulated GPUs, ")
    assert whose.endswith("took the most, 2.00 MiB")


def fit(left: int) -> Fit:
    trial = Trial(8, True, 10 * GiB - left, 0.1, left)
    return Fit("T4", "--n", 8, 9, None, 1, 10 * GiB, 0, 0, [trial], 1.0, [])


def test_a_fit_warns_where_next_to_nothing_is_left() -> None:
    answer, thin = fit_text(fit(50 * MiB)).splitlines()[:2]
    assert answer == "T4: --n 8"
    assert thin == "  only 50.00 MiB to spare, 0.5% of the card; --headroom 5% leaves more"
    assert "thin" not in fit_text(fit(GiB))


def test_what_does_not_fit_leads_to_what_could_be_changed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--micro-batch-size')")
    small, large = (replace(prediction(size), script=str(script)) for size in (GiB, 99 * GiB))
    run = ["plimsoll", "run", "--record", "run.plim", str(script)]
    fits = ["plimsoll", "fit", str(script)]

    def program(*arguments: str) -> Program:
        return Program(str(script), [*arguments], [str(script)], [*arguments])

    assert _next_step(large, program("--x", "1")) == [
        *(*fits, "--gpu", "T4", "--", "--x", "1"),
    ]
    assert _next_step(small, program()) == [
        *(*fits, "--vary=--micro-batch-size", "--gpu", "T4"),
    ]
    assert _next_step(small, program("--batch=4"))[3] == "--vary=--batch"
    script.write_text("")
    assert _next_step(small, program()) == run
    recipe = Program(
        "x.py", ["--batch-size", "4", "--steps", "2"], ["--model", "M"], ["--steps", "2"]
    )
    assert _next_step(small, recipe) == [
        *("plimsoll", "fit", "--model", "M", "--vary=--batch-size", "--gpu", "T4"),
        *("--", "--steps", "2"),
    ]
