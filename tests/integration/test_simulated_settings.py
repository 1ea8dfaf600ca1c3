"""Allocator settings that a program on simulated GPUs makes itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import assert_runs, simulate

pytest.importorskip("torch")

HALF = "per_process_memory_fraction:0.5"
MORE_THAN_HALF = """
try:
    torch.empty(50 << 30, dtype=torch.uint8, device="cuda")
    print("granted")
except torch.OutOfMemoryError:
    print("refused")
"""


@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_the_environment_is_read_when_cuda_is_used_first(tmp_path: Path, allocator: str) -> None:
    text = f'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{HALF}"\n' + MORE_THAN_HALF
    assert assert_runs(tmp_path, text, "--allocator", allocator) == "refused\n"


@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_settings_made_before_the_first_use_hold(tmp_path: Path, allocator: str) -> None:
    text = f'torch._C._accelerator_setAllocatorSettings("{HALF}")\n' + MORE_THAN_HALF
    done = simulate(tmp_path, text, "--allocator", allocator)
    assert done.stdout == "refused\n"
    assert "ignored" not in done.stderr


def test_the_elastic_allocator_refuses_unknown_settings(tmp_path: Path) -> None:
    done = simulate(
        tmp_path, "torch.cuda.init()", "--allocator", "elastic", PYTORCH_CUDA_ALLOC_CONF="foo:1"
    )
    assert done.returncode != 0
    assert "'foo'" in done.stderr


def test_the_commands_settings_come_before_the_environments(tmp_path: Path) -> None:
    out = assert_runs(tmp_path, MORE_THAN_HALF, "--conf", HALF, PYTORCH_CUDA_ALLOC_CONF="")
    assert out == "refused\n"


def test_what_was_set_before_the_settings_stays(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
torch.cuda.memory._record_memory_history()
torch.cuda.set_per_process_memory_fraction(0.25)
torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
x = torch.ones(1 << 20, device="cuda")
(trace,) = torch.cuda.memory._snapshot()["device_traces"]
assert [entry["action"] for entry in trace][-1:] == ["alloc"]
try:
    torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError("the fraction is gone")
""")  # fmt: skip
