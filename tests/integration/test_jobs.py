"""Tests the predicted memory of each rank of a training job: DDP, FSDP2, a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import MiB
from plimsoll.prediction.assumed import EXTRAPOLATED_NCCL, LETS_GO_LATER
from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

if TYPE_CHECKING:
    from plimsoll.prediction.rank_use import RankUse
    from plimsoll.prediction.results import Prediction

pytest.importorskip("torch")

TRAINS = PROGRAMS / "jobs" / "trains.py"
LAYER = 4 * MiB


def trained(kind: str) -> Prediction:
    return predict(TRAINS, [kind], gpu="H200", nproc_per_node=2, measure_need=False)


def assert_ranges_hold(use: RankUse) -> None:
    """Checks that each figure is within its range, if it has one."""
    for guess, bounds in (
        (use.peak_allocated_bytes, use.peak_allocated_range_bytes),
        (use.peak_reserved_bytes, use.peak_reserved_range_bytes),
        (use.nccl_bytes, use.nccl_range_bytes),
    ):
        assert guess is not None
        assert bounds is None or bounds[0] <= guess <= bounds[1]


def figures(use: RankUse) -> tuple[int | None, ...]:
    return (
        use.peak_allocated_bytes,
        use.peak_reserved_bytes,
        use.nccl_bytes,
        use.device_used_bytes,
    )


@pytest.mark.long
def test_ranks_of_data_parallel_training_take_the_same() -> None:
    found = trained("ddp")
    first, second = found.ranks
    assert figures(first) == figures(second)
    # Parameters, gradients, DDP's buckets, and Adam's two states.
    assert (first.peak_allocated_bytes or 0) >= 5 * 4 * LAYER
    assert_ranges_hold(first)
    # plimsoll assumes nothing about NCCL: its memory for two ranks on NVLink was measured.
    assert not any(each.operation == "NCCL" for each in found.assumptions)


@pytest.mark.long
def test_a_bucket_with_views_may_stay_alive_too() -> None:
    """The first bucket has no owner but its collective, once the gradients are deleted."""
    found = trained("views")
    bucket = next(each for each in found.assumptions if each.what == LETS_GO_LATER)
    assert bucket.bytes == 4 * LAYER


@pytest.mark.long
def test_ranks_that_share_a_model_take_the_same() -> None:
    found = trained("fsdp2")
    first, second = found.ranks
    assert figures(first) == figures(second)
    # Half of Adam's two states, and Adam's step counters.
    assert 0 <= found.by_category["optimizer_state"] - 2 * 4 * LAYER // 2 < MiB
    assert_ranges_hold(first)


@pytest.mark.long
def test_stages_take_what_they_hold() -> None:
    found = trained("pipeline")
    first, second = found.ranks
    # The second rank has three layers, the first rank has one. Each layer has parameters and
    # gradients.
    more = (second.peak_allocated_bytes or 0) - (first.peak_allocated_bytes or 0)
    assert 2 * 2 * LAYER <= more < 3 * 2 * LAYER
    assert found.worst_rank == 1
    assert first.nccl_bytes == second.nccl_bytes
    for use in found.ranks:
        assert_ranges_hold(use)


@pytest.mark.long
def test_other_cards_are_extrapolated_and_a_late_rank_leaves_no_warning() -> None:
    job = ("--nproc-per-node", "3", TRAINS, "--", "late")
    done = run_plimsoll("predict", "--gpu", "A100", *job, seconds=300)
    assert done.returncode == 0, done.stderr
    assert f"NCCL: {EXTRAPOLATED_NCCL}" in done.stdout
    assert "waitForInput" not in done.stderr
