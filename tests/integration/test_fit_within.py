"""What to change so that a script fits: tried on the script itself, and predicted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll import InputError
from plimsoll.fitting import fit_within
from plimsoll.prediction import predict
from plimsoll.units import MiB
from tests.recordings import ROOT

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

TRAIN_GPT = ROOT / "examples" / "train_gpt.py"
SMALL = ["--depth", "2", "--width", "256", "--batch-size", "4"]


def test_a_plan_fits_and_its_copy_is_predicted_to_take_the_same_bytes(tmp_path: Path) -> None:
    before = predict(TRAIN_GPT, SMALL, gpu="T4")
    within = before.context_bytes + before.peak_allocated_bytes * 3 // 4 // MiB * MiB
    copy = tmp_path / "copy.py"
    plan = fit_within(TRAIN_GPT, SMALL, within=within, gpu="T4", apply=copy)
    assert plan.fits
    assert plan.plan
    assert plan.device_used_bytes <= within < plan.as_it_is_bytes == before.device_used_bytes
    assert plan.simulations <= 15
    assert str(plan).splitlines()[0].startswith(f"{TRAIN_GPT} fits in ")
    again = predict(
        copy, SMALL, gpu="T4", allocator=plan.allocator,  # type: ignore[arg-type]
        conf=plan.conf, dedicated=within - before.context_bytes,
    )  # fmt: skip
    assert again.fits
    assert again.peak_reserved_bytes == plan.peak_reserved_bytes
    assert again.device_used_bytes == plan.device_used_bytes


def test_a_script_that_fits_as_it_is_needs_no_change() -> None:
    plan = fit_within(TRAIN_GPT, SMALL, gpu="T4")
    assert (plan.fits, plan.plan, plan.patch, plan.simulations) == (True, [], "", 1)


def test_what_no_card_has_is_refused() -> None:
    with pytest.raises(InputError, match="is more than T4 has for it"):
        fit_within(TRAIN_GPT, gpu="T4", within="100GiB")
    with pytest.raises(InputError, match="CUDA's context alone takes"):
        fit_within(TRAIN_GPT, gpu="T4", within="64MiB")
