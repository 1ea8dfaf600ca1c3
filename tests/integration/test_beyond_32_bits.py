"""Tests operations on tensors above 2**32 bytes: peak memory is as on an H100 with PyTorch 2.11."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest

import plimsoll
from plimsoll.base.errors import ScriptError
from tests.apart import ROOT
from tests.simulated import on_simulated_gpus

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
MEASURED = ROOT / "tests" / "data" / "beyond_32_bits.csv"
"""A CSV file. Each row has a call, and its peak bytes on an H100, which include the result."""


def zeros(*sizes: int, dtype: Any = None) -> Any:
    return torch.zeros(sizes, device="cuda", dtype=dtype)


@on_simulated_gpus(gpu="H100")
def test_what_a_call_takes_is_what_it_took_on_an_h100() -> None:
    different = []
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            torch.cuda.empty_cache()
            names = {"torch": torch, "zeros": zeros}
            operand = eval(row["operand"], names)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = eval(row["call"], names, {"x": operand})
            taken = torch.cuda.max_memory_allocated() - before
            del result, operand
            if taken != int(row["bytes"]):
                different.append(f"{row['name']}: {taken}, measured {row['bytes']}")
    assert not different


def test_a_size_that_is_none_is_an_error_and_no_lack_of_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('import torch\ntorch.empty(1 << 60, dtype=torch.uint8, device="cuda")\n')
    with pytest.raises(ScriptError, match=r"more than 1EB memory.*script\.py:2"):
        plimsoll.predict(script, gpu="H100")


@on_simulated_gpus(gpu="H100")
def test_a_factorization_that_cusolver_cannot_count_is_refused() -> None:
    rows = 58_720_256
    torch.linalg.qr(zeros(rows, 36))
    assert round(torch.cuda.max_memory_allocated() / 2**30, 2) == 23.63
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB memory"):
        torch.linalg.qr(zeros(rows, 37))
