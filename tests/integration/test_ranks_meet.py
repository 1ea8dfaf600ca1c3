"""Tests the data that ranks on simulated GPUs exchange, and the reports of deadlocks."""

from __future__ import annotations

import re

import pytest

from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

TALKS = PROGRAMS / "jobs" / "talks.py"
_LINE = r"talks\.py:\d+ disagree"


def run_job(mode: str) -> str:
    """Predicts a job of two ranks. Checks that the job fails; returns the last line of stderr."""
    job = ("--nproc-per-node", "2", TALKS, "--", mode)
    done = run_plimsoll("predict", "--gpu", "H200", *job, seconds=300)
    assert done.returncode == 2
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("mode", "ranks"),
    [("values", 3), ("host", 2), pytest.param("again", 2, marks=pytest.mark.long)],
)
def test_values_go_from_rank_to_rank(mode: str, ranks: int) -> None:
    found = predict(TALKS, [mode], gpu="H200", nproc_per_node=ranks, measure_need=False)
    if mode == "values":
        assert [use.rank for use in found.ranks] == list(range(ranks))
        assert found.nccl_bytes > 0


@pytest.mark.long
def test_calls_in_another_order_are_a_deadlock_with_both_lines() -> None:
    said = run_job("order")
    assert re.search(f"deadlock: rank 0 calls all_reduce at .*{_LINE}", said)
    assert re.search(f"rank 1 calls broadcast at .*{_LINE}", said)


@pytest.mark.long
def test_other_sizes_are_named_with_both_lines() -> None:
    said = run_job("sizes")
    assert re.search(f"rank 0 calls all_reduce with 3 of Float, sum at .*{_LINE}", said)
    assert re.search(f"rank 1 calls all_reduce with 4 of Float, sum at .*{_LINE}", said)


@pytest.mark.long
def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    said = run_job("never")
    assert re.search(f"deadlock: .*rank 0 waits in all_reduce of .* at .*{_LINE}", said)
    assert re.search(f"rank 1 waits in recv of .* at .*{_LINE}", said)


@pytest.mark.long
def test_a_rank_that_has_ended_is_waited_for_in_vain() -> None:
    said = run_job("ends")
    assert re.search(f"rank 0 waits in all_reduce of .*{_LINE}; rank 1 has ended", said)
