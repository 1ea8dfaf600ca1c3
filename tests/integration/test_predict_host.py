"""Tests predictions of host memory with programs that take a known amount."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll.base.units import MiB
from plimsoll.prediction.fitting.values import fit
from plimsoll.prediction.predict import predict
from plimsoll.prediction.results import Prediction
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

TAKES = PROGRAMS / "prediction" / "host_memory.py"
LAYERS = PROGRAMS / "prediction" / "two_layers.py"
SIZE = 300 * MiB
NEAR = 24 * MiB
"""The tolerance: two runs of a program differ, and allocations have an overhead."""


def found(kind: str, size: int = SIZE, allocator: str = "native") -> Prediction:
    return predict(TAKES, [kind, str(size // MiB)], allocator=allocator)  # type: ignore[arg-type]


def peak(kind: str, allocator: str = "native") -> int:
    peak_bytes = found(kind, allocator=allocator).host_peak_bytes
    assert peak_bytes is not None
    return peak_bytes


@pytest.fixture(scope="module")
def nothing() -> int:
    """Returns the host memory of a program that allocates nothing."""
    return peak("nothing")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["numpy", "for a moment", "tensor", "fork"])
def test_what_the_program_takes_is_in_it(kind: str, nothing: int) -> None:
    assert peak(kind) - nothing == pytest.approx(SIZE, abs=NEAR)


@pytest.mark.long
def test_page_locked_memory_is_rounded_up_as_pytorch_does(nothing: int) -> None:
    assert peak("pinned") - nothing == pytest.approx(512 * MiB, abs=NEAR)


@pytest.mark.long
def test_batches_that_wait_are_in_it(nothing: int) -> None:
    batches = 4 * SIZE // 4
    held = 2 * SIZE // 4  # each of two workers also holds the samples of a batch
    assert batches - NEAR < peak("loader") - nothing < batches + 2 * held + 2 * NEAR


@pytest.mark.long
def test_what_is_placed_in_shared_memory_is_in_it(nothing: int) -> None:
    state = 2 * (SIZE // 8 * 4)
    assert peak("placed", allocator="elastic") - nothing == pytest.approx(state, abs=NEAR)


@pytest.mark.long
def test_it_is_in_the_answer_with_its_range() -> None:
    done = run_plimsoll("predict", "--json", TAKES, "--", "nothing", "1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    low, high = answer["host_peak_range_bytes"]
    assert 0 < low < answer["host_peak_bytes"] < high
    text = str(found("nothing"))
    (line,) = [line for line in text.splitlines() if line.startswith("  host memory ")]
    assert line.endswith(", estimated")


def test_it_is_known_of_a_program_without_cuda(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import numpy as np\nheld = np.ones(300 << 20, dtype=np.uint8)\n")
    peak_bytes = predict(script).host_peak_bytes
    assert peak_bytes is not None
    assert SIZE < peak_bytes < SIZE + 64 * MiB  # Python adds some memory; PyTorch is not imported


@pytest.mark.long
def test_the_ranks_of_a_job_are_added_up() -> None:
    one = predict(LAYERS, ["64"])
    both = predict(LAYERS, ["64"], nproc_per_node=2)
    assert one.host_peak_bytes is not None
    assert both.host_peak_bytes is not None
    assert 1.4 * one.host_peak_bytes < both.host_peak_bytes < 3 * one.host_peak_bytes
    assert "of one machine with all its ranks" in str(both)
    some = predict(LAYERS, ["64"], nproc_per_node=2, ranks="1")
    assert some.host_peak_bytes is None


@pytest.mark.long
def test_fit_says_it_of_each_value() -> None:
    result = fit(TAKES, "numpy", at_most=2)
    assert all(trial.host_peak_bytes for trial in result.curve)
    assert f"With numpy {result.largest}, the script uses about " in str(result)
