"""Tests `plimsoll.torch.simulated.check`, which tries simulated GPUs on an untested PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulated import PROGRAMS

pytest.importorskip("torch")

BROKEN = PROGRAMS / "simulated" / "broken_torch.py"


@pytest.fixture(scope="module")
def library() -> str:
    from plimsoll.torch.building.compiler import build
    from plimsoll.torch.simulated.library import SIMULATED_GPU

    return str(build(SIMULATED_GPU))


@pytest.mark.long
def test_the_check_passes_where_all_works(library: str) -> None:
    command = [sys.executable, "-P", "-m", "plimsoll.torch.simulated.check", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("torch.nn.Module.cuda", "moving a module to the GPU"),
        ("torch.nn.functional.linear", "the forward pass"),
        ("torch.Tensor.backward", "the backward pass"),
        ("torch.optim.AdamW.step", "the optimizer's step"),
    ],
)
def test_the_check_says_in_its_last_line_what_does_not_work(
    library: str, name: str, step: str
) -> None:
    command = [sys.executable, str(BROKEN), name, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"{step} fails with RuntimeError: false INTERNAL ASSERT FAILED at file.cpp:1"
