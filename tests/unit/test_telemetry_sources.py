"""Tests sources, which make plimsoll's counters from each allocator's own counters."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import Allocator, SimulatedGpu, SimulatedMachine, _core, explain
from plimsoll.base.telemetry import torch_counters
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.base.telemetry.torch_counters import EngineCounters, TorchCounters, _Gpus
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.offloading.tiers.reports import torch_snapshot
from plimsoll.recordings.snapshot_reader import read_snapshot
from plimsoll.torch.simulated.simulated_counters import SimulatedCounters
from tests.unit.fake_nvml import FakeNvml, Gpu

if TYPE_CHECKING:
    from plimsoll.engine.protocol import AllocatorName

torch = pytest.importorskip("torch")


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Replaces the answers of CUDA and NVML by those of one GPU."""
    gpu = Gpu("GPU-ab", compute={})
    found = SimpleNamespace(name="H100", uuid="ab", total_memory=79 * GiB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch_counters, "Nvml", lambda: Nvml(FakeNvml(gpu)))
    return gpu


def engines(allocator: str) -> Any:
    driver = SimulatedGpu("8GiB")._driver
    engine = _core.Engine.simulated(driver, allocator, "", "2.11", 0, False)
    return SimpleNamespace(allocator=allocator, opened=lambda: {0: engine})


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("allocator", ["elastic", "native"])
def test_engines_are_read(allocator: str) -> None:
    source = EngineCounters(engines(allocator))
    now = source.read()
    (device,) = now.devices
    assert source.allocator == allocator
    assert (device.index, device.name, device.uuid) == (0, "H100", "ab")
    assert (device.total_bytes, device.reserved_bytes, device.context_bytes) == (79 * GiB, 0, None)
    assert device.fragments_bytes == 0
    assert now.pinned_bytes is not None
    assert now.shared_total_bytes is not None


def test_fragments_of_the_elastic_allocator_are_what_empty_cache_leaves() -> None:
    machine = SimulatedMachine(["8GiB"])
    allocator = Allocator(machine.gpus[0], allocator="elastic")
    blocks = [allocator.malloc("700KiB") for _ in range(9)]
    for block in blocks[1:-1]:
        allocator.free(block)
    simulation: Any = SimpleNamespace(
        allocators=[allocator], profiles=[gpu_profile("T4")], machine=machine, contexts={0},
        context_bytes=lambda _: 0,
    )  # fmt: skip
    source = SimulatedCounters(simulation)
    (before,) = source.read().devices
    assert before.cached_bytes > 0
    assert before.fragments_bytes is not None
    assert before.fragments_bytes > 0
    allocator.empty_cache()
    (after,) = source.read().devices
    assert (after.cached_bytes, after.fragments_bytes) == (0, before.fragments_bytes)


@pytest.mark.parametrize(
    ("allocator", "conf"),
    [
        ("elastic", ""),
        ("native", ""),
        ("native", "expandable_segments:True"),
        ("native", "max_split_size_mb:64"),
        ("uncached", ""),
    ],
)
def test_explain_says_of_a_process_what_top_says(allocator: AllocatorName, conf: str) -> None:
    machine = SimulatedMachine(["24GiB"])
    made = Allocator(machine.gpus[0], allocator=allocator, conf=conf)
    sizes = [*["700KiB"] * 9, *["3MiB", "7MiB", "30MiB", "100MiB", "5MiB", "100KiB"] * 5]
    for number, block in enumerate([made.malloc(size) for size in sizes]):
        if number % 3 == 1 or 20 <= number < 24:
            made.free(block)
    simulation: Any = SimpleNamespace(
        allocators=[made], profiles=[gpu_profile("T4")], machine=machine, contexts={0},
        context_bytes=lambda _: 0,
    )  # fmt: skip
    (now,) = SimulatedCounters(simulation).read().devices
    content = pickle.dumps(made.memory_snapshot())
    found = explain(read_snapshot(content, "process 1", needs_history=False))
    assert found.reserved.cached_bytes == now.cached_bytes
    assert found.reserved.fragments_bytes == now.fragments_bytes
    assert found.reserved.allocated_bytes == now.allocated_bytes
    assert not any("unknown size" in note for note in found.notes)
    if allocator == "elastic":
        assert found.fragmentation.movable_bytes == now.cached_bytes > 0


def test_no_gpu_in_use_is_nothing_to_tell() -> None:
    assert EngineCounters(SimpleNamespace(allocator="native", opened=dict)).read().devices == ()
    assert TorchCounters().read().devices == ()


def nested(**current: int) -> dict[str, Any]:
    return {
        **{name: {"all": {"current": value, "peak": value}} for name, value in current.items()},
        "num_alloc_retries": 3,
        "num_ooms": 1,
    }


def test_pytorchs_own_counters(monkeypatch: pytest.MonkeyPatch, one_gpu: Gpu) -> None:
    import os

    used = nested(allocated_bytes=30, active_bytes=32, reserved_bytes=64, inactive_split_bytes=7)
    statistics = [used, nested(reserved_bytes=0)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", statistics.__getitem__)
    host = {"allocated_bytes": {"current": 5}}
    monkeypatch.setattr(torch.cuda.memory, "host_memory_stats_as_nested_dict", lambda: host)
    one_gpu.compute = {os.getpid(): 64 + 500}
    now = TorchCounters().read()
    (device,) = now.devices  # the second GPU was never used
    assert (device.allocated_bytes, device.pending_bytes, device.fragments_bytes) == (30, 2, 7)
    assert (device.cached_bytes, device.reserved_bytes, device.context_bytes) == (25, 64, 500)
    assert (device.num_alloc_retries, device.num_ooms, device.num_spills) == (3, 1, 0)
    assert now.pinned_bytes == 5


def test_a_snapshot_of_pytorchs_own_allocator_names_the_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = Allocator(SimulatedGpu("24GiB"))
    allocator.malloc("30MiB")
    card = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=79 * GiB)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", allocator.memory_snapshot)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    content = pickle.dumps(torch_snapshot())
    found = explain(read_snapshot(content, "process 1", needs_history=False)).card
    assert found.total_bytes == 79 * GiB
    assert found.context_bytes == gpu_profile("H100").context_bytes


class TestContext:
    @pytest.fixture
    def gpus(self, one_gpu: Gpu) -> _Gpus:
        import os

        one_gpu.compute = {os.getpid(): 600 * MiB}
        return _Gpus()

    def test_it_is_what_the_driver_charges_beyond_the_allocator(self, gpus: _Gpus) -> None:
        assert gpus.context_bytes(0, lambda: 100 * MiB) == 500 * MiB

    def test_a_size_that_changed_meanwhile_is_not_subtracted(self, gpus: _Gpus) -> None:
        sizes = iter([100 * MiB, 140 * MiB])
        assert gpus.context_bytes(0, lambda: next(sizes)) is None

    def test_more_than_the_driver_charges_is_no_context(self, gpus: _Gpus) -> None:
        assert gpus.context_bytes(0, lambda: 700 * MiB) is None

    def test_the_driver_is_asked_rarely(self, gpus: _Gpus, one_gpu: Gpu) -> None:
        assert gpus.context_bytes(0, lambda: 100 * MiB) == 500 * MiB
        one_gpu.compute = {}
        assert gpus.context_bytes(0, lambda: 300 * MiB) == 500 * MiB
