"""Tests plimsoll as if on Windows or macOS: reading recordings, and errors that ask for Linux."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.base.errors import InputError
from plimsoll.base.systems import require_linux
from tests.recordings import EXAMPLES

ROOT = Path(__file__).parents[2]
RECORDING = str(EXAMPLES / "gpt2_adamw_oom.pickle.gz")
ENCODINGS = {
    "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0",
}  # fmt: skip
"""Variables that make Python encode text as it does by default on Windows.

Pipes then use cp1252, and files use ASCII. Both encodings lack most Unicode characters.
"""


def on_windows(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a Python without the modules that Windows lacks."""
    program = ROOT / "tests" / "programs" / "without_posix.py"
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        encoding="cp1252",
        env={**os.environ, **ENCODINGS},
        check=False,
    )


def test_recordings_are_replayed_and_explained_on_windows() -> None:
    replayed = on_windows("replay", RECORDING, "--json")
    assert replayed.returncode == 0, replayed.stderr
    assert '"matches_recording": true' in replayed.stdout
    explained = on_windows("explain", RECORDING)
    assert explained.returncode == 0, explained.stderr
    assert "out of memory" in explained.stdout.lower()


def test_a_page_is_written_on_windows(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = on_windows("view", RECORDING, "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpus",), "RTX 4090"),
        (("metrics", "--rules"), "groups:"),
        (("metrics", "--dashboard"), '"panels"'),
    ],
)
def test_what_needs_no_recording_answers_on_windows(arguments: tuple[str, ...], says: str) -> None:
    done = on_windows(*arguments)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_doctor_says_on_windows_that_predictions_need_linux() -> None:
    done = on_windows("doctor")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0].endswith("do not work here: Linux is needed; use WSL")


def test_recordings_are_swept_on_windows(tmp_path: Path) -> None:
    table = tmp_path / "table.parquet"
    cards = "--vary=gpu=RTX 3050 Laptop,H100"
    done = on_windows("sweep", RECORDING, cards, f"--results={table}", "--json")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert [row["fits"] for row in json.loads(done.stdout)["rows"]] == [False, True]
    assert table.exists()


@pytest.mark.parametrize("verb", ["predict", "fit", "run", "top"])
def test_what_needs_linux_says_so_in_one_line(verb: str) -> None:
    done = on_windows(verb, *(["train.py"] if verb != "top" else []))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"plimsoll: plimsoll {verb} needs Linux: use WSL\n"


def test_every_system_is_told_where_it_has_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    require_linux("a prediction")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(InputError, match=r"^a prediction needs Linux: use a machine or a cont"):
        require_linux("a prediction")
