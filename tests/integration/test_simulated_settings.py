"""Tests allocator settings on simulated GPUs, from environment variables and from calls."""

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


@pytest.mark.long
@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_the_environment_is_read_when_cuda_is_used_first(allocator: str) -> None:
    assert output_of(set_the_environment, "--allocator", allocator) == "refused\n"


def set_a_limit() -> None:
    torch._C._accelerator_setAllocatorSettings(HALF)
    ask_for_more_than_half()


@pytest.mark.long
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
    with pytest.raises(torch.OutOfMemoryError):  # more than the memory fraction allows
        torch.empty(30 << 30, dtype=torch.uint8, device="cuda")


def segment_sizes(size: int) -> list[int]:
    """Returns the sizes of the new segments that a request of `size` bytes makes."""
    before = {segment["address"] for segment in torch.cuda.memory_snapshot()}
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    new = [s for s in torch.cuda.memory_snapshot() if s["address"] not in before]
    return [segment["total_size"] for segment in new]


kept: list[object] = []


@on_simulated_gpus()
def test_settings_made_while_the_program_runs_hold_from_then_on() -> None:
    mib = 1 << 20
    kept.append(torch.empty(100 * mib, dtype=torch.uint8, device="cuda"))
    kept.clear()  # 100 MiB are cached
    assert segment_sizes(30 * mib) == []
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
    torch.cuda.empty_cache()
    kept.append(torch.empty(100 * mib, dtype=torch.uint8, device="cuda"))
    kept.pop()
    # PyTorch does not split the cached block of 100 MiB, which is above max_split_size.
    assert segment_sizes(40 * mib) == [40 * mib]
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.empty(200 * mib, dtype=torch.uint8, device="cuda")
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert (settings["expandable_segments"], settings["max_split_size"]) == (True, -1)
    # Setting `roundup_power2_divisions` does not reset `expandable_segments`.
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["expandable_segments"]
    assert settings["roundup_power2_divisions"]["1"] == 4


@on_simulated_gpus()
def test_a_limit_set_after_the_first_use_does_not_change_it() -> None:
    torch.cuda.init()
    torch.cuda.memory._set_allocator_settings(HALF)
    torch.empty(50 << 30, dtype=torch.uint8, device="cuda")


@on_simulated_gpus()
def test_bad_settings_raise_and_change_nothing() -> None:
    torch.ones(1, device="cuda")
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
    with pytest.raises(ValueError, match="'nonsense'"):
        torch.cuda.memory._set_allocator_settings("nonsense:1")
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["max_split_size"] == 64 << 20


@on_simulated_gpus()
def test_settings_follow_those_of_the_environment() -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    torch.cuda.memory._set_allocator_settings(HALF)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"  # too late to have an effect
    ask_for_more_than_half()
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert (settings["expandable_segments"], settings["max_split_size"]) == (True, -1)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
