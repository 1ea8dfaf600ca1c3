"""Allocator settings that a program on simulated GPUs makes itself."""

from __future__ import annotations

import os

import pytest

from tests.simulated import on_simulated_gpus, output_of, simulate

torch = pytest.importorskip("torch")

HALF = "per_process_memory_fraction:0.5"


def ask_for_more_than_half() -> None:
    try:
        torch.empty(50 << 30, dtype=torch.uint8, device="cuda")
        print("granted")
    except torch.OutOfMemoryError:
        print("refused")


def set_the_environment() -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = HALF
    ask_for_more_than_half()


@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_the_environment_is_read_when_cuda_is_used_first(allocator: str) -> None:
    assert output_of(set_the_environment, "--allocator", allocator) == "refused\n"


def set_a_limit() -> None:
    torch._C._accelerator_setAllocatorSettings(HALF)
    ask_for_more_than_half()


@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_settings_made_before_the_first_use_hold(allocator: str) -> None:
    done = simulate(set_a_limit, "--allocator", allocator, environment={})
    assert done.stdout == "refused\n"
    assert "ignored" not in done.stderr


def test_the_elastic_allocator_refuses_unknown_settings() -> None:
    program = "import torch; torch.cuda.init()"
    unknown = {"PYTORCH_CUDA_ALLOC_CONF": "foo:1"}
    done = simulate(program, "--allocator", "elastic", environment=unknown)
    assert done.returncode != 0
    assert "'foo'" in done.stderr


def test_the_commands_settings_come_before_the_environments() -> None:
    out = output_of(
        ask_for_more_than_half, "--conf", HALF, environment={"PYTORCH_CUDA_ALLOC_CONF": ""}
    )
    assert out == "refused\n"


@on_simulated_gpus()
def test_what_was_set_before_the_settings_stays() -> None:
    torch.cuda.memory._record_memory_history()
    torch.cuda.set_per_process_memory_fraction(0.25)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    _x = torch.ones(1 << 20, device="cuda")
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    assert [entry["action"] for entry in trace][-1:] == ["alloc"]
    with pytest.raises(torch.OutOfMemoryError):  # by the fraction
        torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
