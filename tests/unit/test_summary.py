"""Tests that counters have PyTorch's keys, and that the summary table is exactly PyTorch's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll import Allocator, OutOfMemoryError, SimulatedGpu, SimulatedMachine
from plimsoll.engine.summary import summary_text
from tests.recordings import LARGE, SMALL, recordings_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def keys(version: str) -> list[str]:
    return sorted(Allocator(SimulatedGpu("1GiB"), version=version).memory_stats())


def torch_summary(stats: Mapping[str, int], device: int, *, abbreviated: bool) -> str:
    """Returns PyTorch's own summary table for these counters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.memory, "memory_stats", lambda device: dict(stats))  # noqa: ARG005
        patch.setattr(torch.cuda.memory, "_get_device_index", lambda *_, **__: device)
        return str(torch.cuda.memory.memory_summary(device, abbreviated))


def used(allocator: Allocator) -> Allocator:
    """Uses an allocator so that every row of the table has a value. Returns the allocator."""
    tensors = [allocator.malloc(size) for size in ("1KiB", "3MiB", "70MiB", "700MiB", "5KiB")]
    for tensor in tensors[::2]:
        allocator.free(tensor)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc("5GiB")
    return allocator


MAKE: dict[str, Callable[[], Allocator]] = {
    "fresh": lambda: Allocator(SimulatedGpu("1GiB")),
    "used": lambda: used(Allocator(SimulatedGpu("1GiB"))),
    "second device": lambda: used(Allocator(SimulatedMachine(["1GiB", "1GiB"]).gpus[1])),
    "expandable": lambda: used(Allocator(SimulatedGpu("1GiB"), conf="expandable_segments:True")),
    "oversize": lambda: used(Allocator(SimulatedGpu("1GiB"), conf="max_split_size_mb:64")),
    "uncached": lambda: used(Allocator(SimulatedGpu("1GiB"), allocator="uncached")),
}


@pytest.mark.parametrize("abbreviated", [False, True])
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_the_table_is_the_one_that_pytorch_prints(
    make: Callable[[], Allocator], abbreviated: bool
) -> None:
    allocator = make()
    stats = allocator.memory_stats()
    expected = torch_summary(stats, allocator.device, abbreviated=abbreviated)
    assert allocator.memory_summary(abbreviated=abbreviated) == expected


# Any counters, some around the values at which a column changes its unit.
COUNTERS = st.one_of(
    st.integers(0, 2**50),
    st.sampled_from([750_000, 749_999, 750_000_000, 749_999_999, 2**63 - 1]),
    st.builds(lambda power, off: 768 * 1024**power + off, st.integers(1, 5), st.integers(-1, 1)),
)


@given(
    counters=st.lists(COUNTERS, min_size=len(keys("2.13")), max_size=len(keys("2.13"))),
    device=st.sampled_from([0, 1, 15]),
    abbreviated=st.booleans(),
)
@settings(max_examples=50)
def test_any_counters_are_laid_out_as_by_pytorch(
    counters: list[int], device: int, abbreviated: bool
) -> None:
    stats = dict(zip(keys("2.13"), counters, strict=True))
    expected = torch_summary(stats, device, abbreviated=abbreviated)
    assert summary_text(stats, device, abbreviated=abbreviated) == expected


@pytest.mark.parametrize("folder", [SMALL, LARGE], ids=["small", "large"])
def test_the_counters_have_the_keys_that_pytorch_2_11_recorded(folder: Path) -> None:
    if not folder.exists():
        pytest.skip(f"there are no recordings in {folder}")
    recordings = recordings_in(folder)
    assert recordings
    for recorded in recordings:
        assert sorted(recorded.stats) == keys("2.11"), recorded.name


def test_newer_versions_count_rejections_too() -> None:
    older = keys("2.11")
    for version in ("2.9", "2.10", "2.11.0+cu130"):
        assert keys(version) == older
    for version in ("2.12", "2.13"):
        assert keys(version) == sorted([*older, "num_oom_rejections"])
