"""Tests `predict --check`, which compares a program's prediction with a recording of a run.

The run has the same arguments and settings as the prediction, or different ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.base.units import MiB
from plimsoll.prediction.recording_check import check
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS, output_of

pytest.importorskip("torch")

LAYERS = PROGRAMS / "prediction" / "two_layers.py"
PROCESSES = PROGRAMS / "prediction" / "processes.py"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a recording of the unchanged program on an A100."""
    path = tmp_path_factory.mktemp("recorded") / "run.plim"
    done = run_plimsoll("run", "--simulate", "A100-80GB", "--record", path, LAYERS, "256")
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.long
def test_the_same_program_matches_on_the_recorded_card(recording: Path) -> None:
    done = run_plimsoll("predict", "--check", recording, LAYERS, "--", "256")
    assert done.returncode == 0, done.stderr
    first, second, third, *rest = done.stdout.splitlines()
    assert first.startswith("predicted peak reserved ")
    assert first.endswith(" (+0.0%)")
    assert second.startswith("predicted peak allocated ")
    numbers = third.removeprefix("predicted requests ").split(", recorded ")
    assert numbers[0] == numbers[1] != "0"
    assert rest == ["", "At the peaks every source line holds the same."]


@pytest.mark.long
def test_what_was_changed_is_the_line_that_differs_the_most(recording: Path) -> None:
    found = check(LAYERS, recording, ["256", "8192"])
    assert not found.matches
    assert found.gpu == "A100-80GB"
    assert found.held_by == "line"
    row = found.held[0]
    assert row.what.endswith("two_layers.py:11 <module>")
    assert (row.predicted_bytes, row.recorded_bytes) == (32 * MiB, 0)
    assert found.predicted_allocated_bytes - found.recorded_allocated_bytes == 32 * MiB
    assert found.predicted_requests == found.recorded_requests + 1
    assert found.reasons == [
        "1 request of the prediction not in the recording: 1 of 32.00 MiB",
    ]
    assert f"+32.00 MiB  {row.what}" in str(found)


@pytest.mark.long
def test_settings_that_differ_are_named(recording: Path) -> None:
    options = ("--gpu", "H100", "--conf", "expandable_segments:True", "--json")
    done = run_plimsoll("predict", "--check", recording, LAYERS, *options, "--", "512")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == 2
    assert found["matches"] is False
    assert found["predicted_reserved_bytes"] != found["recorded_reserved_bytes"]
    assert found["held"][0].keys() == {"what", "predicted_bytes", "recorded_bytes"}
    assert found["reasons"][:2] == [
        "the card differs: predicted with H100, recorded with A100-80GB",
        "PYTORCH_CUDA_ALLOC_CONF differs: predicted with expandable_segments:True, recorded with "
        "empty",
    ]


WITHOUT_STACKS = """
import runpy
import sys
import plimsoll

program = sys.argv[1]
sys.argv = [program, "256"]
with plimsoll.record("run.plim", stacks=False):
    runpy.run_path(program)
"""


@pytest.mark.long
def test_a_recording_without_stacks_is_compared_by_sizes(tmp_path: Path) -> None:
    output_of(WITHOUT_STACKS, arguments=[LAYERS], folder=tmp_path)
    found = check(LAYERS, tmp_path / "run.plim", ["256", "8192"])
    assert found.held_by == "size"
    assert [(row.what, row.difference_bytes) for row in found.held] == [("32.00 MiB", 32 * MiB)]


@pytest.mark.long
def test_what_cannot_be_compared_is_one_line(recording: Path, tmp_path: Path) -> None:
    done = run_plimsoll("predict", "--check", tmp_path / "nope.plim", LAYERS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"plimsoll: {tmp_path / 'nope.plim'}: no such file\n"
    done = run_plimsoll("predict", "--check", recording, LAYERS, "--gpu", "T4", "--gpu", "L4")
    assert done.returncode == 2
    expected = "plimsoll: --check takes one card, that of the recording: give one --gpu\n"
    assert done.stderr == expected
    with pytest.raises(InputError, match="only a program of one process can be held against"):
        check(PROCESSES, recording, ["fork"])
