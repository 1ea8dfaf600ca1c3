"""Compares the counters that a process publishes with the driver's figures, on a real GPU."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import plimsoll
from plimsoll.base.telemetry.counters import read_processes
from plimsoll.base.telemetry.publisher import publish
from plimsoll.base.telemetry.torch_counters import TorchCounters
from plimsoll.integrations.top.watch import Watch
from plimsoll.offloading.tiers.reports import torch_snapshot
from tests.apart import in_a_process
from tests.recordings import ROOT
from tests.waiting import wait_for

if TYPE_CHECKING:
    from plimsoll.base.telemetry.counters import ProcessCounters

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

MIB = 1 << 20
PROGRAMS = ROOT / "tests" / "programs" / "telemetry"
every_allocator = pytest.mark.parametrize("allocator", ["elastic", "native", "torch"])


def use(allocator: str) -> None:
    """Installs plimsoll's allocator of this name.

    For "torch", keeps PyTorch's allocator and publishes its counters.
    """
    if allocator == "elastic":
        plimsoll.install()
    elif allocator == "native":
        plimsoll.install("native")
    else:
        torch.cuda.init()
        publish(TorchCounters(), torch_snapshot)


def mine() -> ProcessCounters:
    """Waits until this process publishes its counters again, and returns them."""
    now = time.monotonic_ns()

    def found() -> list[ProcessCounters]:
        return [p for p in read_processes() if p.pid == os.getpid() and p.heartbeat_ns > now]

    return wait_for(found)[0]


def my_gpu() -> tuple[Any, Any]:
    """Returns this process's GPU, and the process's entry there, as `plimsoll top` sees them."""
    mine()
    (found,) = (
        (gpu, one) for gpu in Watch().look().gpus for one in gpu.processes if one.pid == os.getpid()
    )
    return found


@every_allocator
@in_a_process
def test_counters_are_those_of_the_allocator(allocator: str) -> None:
    use(allocator)
    tensors = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del tensors[3]
    _pinned = torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()
    (device,) = mine().devices
    assert device.allocated_bytes == torch.cuda.memory_allocated() == 210 * MIB
    assert device.reserved_bytes == torch.cuda.memory_reserved()
    assert device.peak_allocated_bytes == 240 * MIB
    assert device.name == torch.cuda.get_device_name()
    assert (mine().pinned_bytes or 0) >= 8 * MIB


@pytest.mark.alone
@every_allocator
@in_a_process
def test_the_drivers_number_is_context_and_reserved(allocator: str) -> None:
    use(allocator)
    _tensors = [torch.empty(200 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    gpu, found = my_gpu()
    free, total = torch.cuda.mem_get_info()
    assert gpu.name == torch.cuda.get_device_name()
    assert not gpu.is_simulated
    assert abs(gpu.dedicated_used_bytes - (total - free)) < 700 * MIB
    if any("does not show all processes" in note for note in gpu.notes):
        # In a container, the driver does not say how much memory each process uses.
        assert found.driver_bytes is None
        assert found.context_bytes is None
    else:
        assert found.driver_bytes <= gpu.dedicated_used_bytes
        assert 100 * MIB < found.context_bytes < 1500 * MIB, found.context_bytes
        taken = found.context_bytes + found.counters.dedicated_bytes
        assert abs(found.driver_bytes - taken) <= 4 * MIB, (found.driver_bytes, taken)


@every_allocator
@in_a_process
def test_watching_makes_no_context(allocator: str) -> None:
    use(allocator)
    _x = torch.empty(MIB, device="cuda:0")
    mine()
    subprocess.run([sys.executable, str(PROGRAMS / "makes_no_context.py")], check=True)
    if torch.cuda.device_count() > 1:
        active, flags = ctypes.c_int(), ctypes.c_uint()
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuDevicePrimaryCtxGetState(1, ctypes.byref(flags), ctypes.byref(active))
        # publishing made no context on the second GPU
        assert active.value == 0


@every_allocator
@in_a_process
def test_a_snapshot_on_request_has_the_history(allocator: str) -> None:
    use(allocator)
    torch.cuda.memory._record_memory_history()
    x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    mine()
    child = subprocess.run(
        [sys.executable, str(PROGRAMS / "asks_for_a_snapshot.py"), str(os.getpid())],
        capture_output=True,
        check=True,
    )
    snapshot = pickle.loads(child.stdout)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert any(block["address"] == x.data_ptr() for block in blocks)
    assert any(entry["addr"] == x.data_ptr() for entry in snapshot["device_traces"][0])


@in_a_process
def test_shared_memory_is_told_apart() -> None:
    use("elastic")
    plimsoll.set_tiers(policy="spill", dedicated="1GiB", shared="2GiB")
    warnings.simplefilter("ignore")
    _x = torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")
    _y = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
    (device,) = mine().devices
    assert device.num_spills >= 1
    assert 400 * MIB <= device.shared_bytes <= 700 * MIB
    gpu, _ = my_gpu()
    assert gpu.shared_used_bytes >= device.shared_bytes


@in_a_process
def test_forked_workers_end_although_the_parent_publishes() -> None:
    use("elastic")
    x = torch.ones(MIB, device="cuda")
    mine()
    for batch in torch.utils.data.DataLoader(list(range(64)), batch_size=4, num_workers=4):
        x[: len(batch)] += batch.to("cuda")
    torch.cuda.synchronize()
    mine()
