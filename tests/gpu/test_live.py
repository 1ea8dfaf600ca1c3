"""Tests that a replay gives the addresses that PyTorch has just recorded on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll import replay

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

RECORD = Path(__file__).with_name("record.py")
WORKLOADS = ["churn", "limited", "empty_cache", "streams", "two_users", "threads", "ends", "ring"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_fresh_recording_is_replayed_to_the_address(workload: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(RECORD), str(tmp_path), workload], check=True)
    recordings = sorted(tmp_path.glob("*.pickle.gz"))
    assert recordings
    for path in recordings:
        facts = json.loads(path.with_name(path.name[:-10] + ".json").read_text())
        limit = int(facts["fraction"] * facts["total_memory"]) if facts["fraction"] else None
        (result,) = replay(path, limit=limit)
        assert result.matches_recording is True, (path.name, result.first_difference)
        if not result.reconstructed_start:
            assert result.peak_reserved_bytes == facts["stats"]["reserved_bytes.all.peak"]
            assert result.num_ooms == facts["stats"]["num_ooms"]
