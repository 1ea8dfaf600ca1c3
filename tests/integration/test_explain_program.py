"""Changes to a program, tried by running it where there is no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll import InputError, predict
from plimsoll.explanation.script_changes import _halved, try_changes
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

if TYPE_CHECKING:
    from plimsoll.engines.protocol import AllocatorName

SCRIPT = PROGRAMS / "explanation" / "residual_layers.py"


@pytest.mark.long
@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_changes_save_what_a_direct_prediction_says(allocator: AllocatorName) -> None:
    arguments = ["--batch-size", "8192"]
    recorded = predict(SCRIPT, arguments, allocator=allocator).peak_allocated_bytes
    advice, run, notes = try_changes(
        str(SCRIPT), arguments, gpu="H100", conf="", allocator=allocator, vary="--batch-size",
        recorded_bytes=recorded, is_whole=True,
    )  # fmt: skip
    assert run.runs == 5
    assert run.seems_recorded
    assert notes == []
    by_name = {one.what.split()[0]: one for one in advice}
    assert {"halve", "checkpoint", "compute"} <= set(by_name)
    whole, half = (
        predict(SCRIPT, ["--batch-size", str(size)], allocator=allocator).peak_reserved_bytes
        for size in (8192, 4096)
    )
    assert by_name["halve"].how == "--batch-size 4096"
    assert by_name["halve"].peak_reserved_bytes == half
    assert by_name["halve"].saves_bytes == whole - half
    # Of a layer's 512 + 2048 + 2048 + 512 numbers a row, only the 512 that go in are kept.
    assert by_name["checkpoint"].peak_reserved_bytes < 0.5 * whole
    assert by_name["compute"].peak_reserved_bytes < whole


def test_half_of_an_argument() -> None:
    assert _halved(["-a", "--batch", "9", "b"], "--batch") == (4, ["-a", "--batch", "4", "b"])
    assert _halved(["--batch=8"], "--batch") == (4, ["--batch", "4"])
    for bad in (["--batch"], ["--batch", "one"], ["--batch", "1"], ["--other", "4"]):
        with pytest.raises(InputError, match="--batch is to be halved"):
            _halved(bad, "--batch")
