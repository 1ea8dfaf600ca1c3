"""Tests a program on a real GPU. The program's memory pools sleep and wake.

A pool that sleeps gives its memory back to the driver. A pool that wakes has memory at the same
addresses again. The program has its own allocator for these pools. All other memory comes from
PyTorch's allocator or from one of plimsoll's. When a pool sleeps or wakes, the free memory must
change by as much as in a run of the same program on a simulated GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.apart import ROOT
from tests.simulated import output_of

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]

PROGRAM = ROOT / "tests" / "programs" / "sleeping"
COMMANDS = {
    "torch": [sys.executable],
    "native": [sys.executable, "-m", "plimsoll", "run", "--allocator", "native"],
    "elastic": [sys.executable, "-m", "plimsoll", "run", "--allocator", "elastic"],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the program's allocator to a shared library.

    The library is not linked with libcuda: the program loads libcuda first, and then this library.
    """
    made = tmp_path_factory.mktemp("sleeping") / "memory.so"
    command = ["g++", "-std=c++20", "-shared", "-fPIC", str(PROGRAM / "memory.cpp"), "-o"]
    subprocess.run([*command, str(made)], check=True)
    return made


@pytest.fixture(scope="module")
def foreseen(library: Path) -> dict[str, Any]:
    """Returns the program's output on a simulated GPU."""
    found: dict[str, Any] = json.loads(
        output_of(PROGRAM / "pool.py", arguments=[str(library)], gpu="H100", environment={})
    )
    return found


def changes(free: list[list[Any]]) -> list[int]:
    """Returns the bytes that each step freed (positive) or took (negative)."""
    return [after[1] - before[1] for before, after in pairwise(free)]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("allocator", COMMANDS)
def test_sleep_frees_and_waking_takes_what_was_foreseen(
    allocator: str, conf: str, library: Path, foreseen: dict[str, Any]
) -> None:
    done = subprocess.run(
        [*COMMANDS[allocator], str(PROGRAM / "pool.py"), str(library)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert [what for what, _ in found["free"]] == [what for what, _ in foreseen["free"]]
    assert changes(found["free"]) == pytest.approx(changes(foreseen["free"]), rel=0.02)
    for name in ("copied", "in_pools", "equal", "outside", "same_addresses"):
        assert found[name] == foreseen[name]
