"""Tests that benchmarks refuse bad input, and that their tables show the measured results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["torch_tests.py", "."], "VERSION, site"),
        (["soak_simulated.py", "--simulated-hours", "0"], "some time has to go by"),
        (["serving_public.py", "table", "nowhere.csv"], "No such file"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_is_said_what_is_wrong(tmp_path: Path, command: list[str], problem: str) -> None:
    script, *options = command
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *options],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr.splitlines()[-1]


def test_the_table_of_several_ranks_has_the_measured_figures_of_each() -> None:
    results = BENCHMARKS / "results"
    measured = str(results / "serving_tp2.jsonl")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "serving.py"), "--compare", measured, measured],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    table = (results / "serving_tp2.txt").read_text().partition("\n\n")[2]

    def figures(text: str) -> list[tuple[list[str], str]]:
        return [(line.split()[:-3], line.split()[-2]) for line in text.splitlines()]

    assert figures(done.stdout) == figures(table)
    assert sum(" rank 1 " in line for line in table.splitlines()) == 20
