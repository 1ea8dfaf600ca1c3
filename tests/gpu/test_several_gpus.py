"""Tests on two real GPUs that `plimsoll run --json` reports PyTorch's peaks for each GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.recordings import ROOT

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two NVIDIA GPUs"),
]

PROGRAM = ROOT / "tests" / "programs" / "several_gpus.py"


@pytest.mark.parametrize("allocator", ["torch", "native", "elastic"])
@pytest.mark.parametrize("name", ["second_gpu", "data_parallel", "split_model"])
def test_the_account_of_each_gpu_is_that_of_pytorchs_counters(
    name: str, allocator: str, tmp_path: Path
) -> None:
    file = tmp_path / "account.json"
    command = [sys.executable, "-m", "plimsoll", "run", "--allocator", allocator]
    done = subprocess.run(
        [*command, "--json", str(file), str(PROGRAM), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["device"] for row in rows] == [0, 1]
    found = [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in rows]
    assert found == json.loads(done.stdout.splitlines()[-1])
