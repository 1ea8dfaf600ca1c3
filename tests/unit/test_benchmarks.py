"""Tests that benchmarks refuse bad input before they start, with one line and status 2."""

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
