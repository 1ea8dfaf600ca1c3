"""Tests how `explain` changes a program. plimsoll tries each change in a run without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll import predict
from plimsoll.explanation.ranking import ranked
from plimsoll.explanation.script_changes import try_changes
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

if TYPE_CHECKING:
    from plimsoll.engine.protocol import AllocatorName
    from plimsoll.explanation.parts import Advice, ScriptRun

SCRIPT = PROGRAMS / "explanation" / "residual_layers.py"


def tried(batch: int, allocator: AllocatorName = "native") -> tuple[dict[str, Advice], ScriptRun]:
    """Returns a dict of the advice, and the script's run.

    The keys are the first words of the advice. If several pieces of advice share a first word, the
    dict has only the highest ranked one.
    """
    arguments = ["--batch-size", str(batch)]
    recorded = predict(SCRIPT, arguments, allocator=allocator).peak_allocated_bytes
    advice, run, _ = try_changes(
        str(SCRIPT), arguments, gpu="H100", conf="", allocator=allocator, vary="--batch-size",
        recorded_bytes=recorded, is_whole=True,
    )  # fmt: skip
    assert run.seems_recorded
    assert run.runs <= 8
    return {one.what.split()[0]: one for one in reversed(ranked(advice))}, run


@pytest.mark.long
def test_where_the_optimizers_step_is_the_peak_a_fused_one_costs_nothing() -> None:
    by_name, run = tried(64)
    fused = by_name["use"]
    assert fused.what == "use the fused AdamW"
    assert fused.how == "optimizer = torch.optim.AdamW(model.parameters(), fused=True)"
    assert fused.cost == "nothing"
    assert fused.saves_bytes == run.peak_reserved_bytes - fused.peak_reserved_bytes
    assert [one for one in by_name.values() if one.cost == "nothing"] == [fused]


@pytest.mark.long
@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_changes_save_what_a_direct_prediction_says(allocator: AllocatorName) -> None:
    by_name, _ = tried(8192, allocator)
    whole, half = (
        predict(SCRIPT, ["--batch-size", str(size)], allocator=allocator).peak_reserved_bytes
        for size in (8192, 4096)
    )
    assert by_name["halve"].how == "--batch-size 4096"
    assert by_name["halve"].cost == "results"
    assert by_name["halve"].peak_reserved_bytes == half
    assert by_name["halve"].saves_bytes == whole - half
    # A layer has 512 + 2048 + 2048 + 512 values per row. Recomputation keeps only its 512 inputs.
    recomputed = by_name["recompute"]
    assert recomputed.how.splitlines()[-1] == 'plimsoll.recompute(model, "layers.0-5")'
    assert recomputed.cost == "time"
    assert recomputed.peak_reserved_bytes < 0.6 * whole
    assert by_name["compute"].peak_reserved_bytes < whole
