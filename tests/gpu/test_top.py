"""On a real GPU: what a process publishes against what the driver says of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

START = """
import os, pickle, subprocess, sys, time
import torch
from plimsoll.telemetry import read_processes, request_snapshot
from plimsoll.top import Watch
MIB = 1 << 20
def mine():
    now = time.monotonic_ns()
    for _ in range(1000):
        found = [p for p in read_processes() if p.pid == os.getpid() and p.heartbeat_ns > now]
        if found:
            return found[0]
        time.sleep(0.01)
    raise SystemExit("nothing was published")
def my_gpu():
    mine()
    for gpu in Watch().look().gpus:
        for use in gpu.processes:
            if use.pid == os.getpid():
                return gpu, use
    raise SystemExit("top does not show this process")
"""
ALLOCATORS = {
    "elastic": "import plimsoll\nplimsoll.install()",
    "native": "import plimsoll\nplimsoll.install('native')",
    "torch": (
        "from plimsoll.telemetry import publish\n"
        "from plimsoll.telemetry.torch_counters import TorchCounters\n"
        "torch.cuda.init()\npublish(TorchCounters())"
    ),
}
every_allocator = pytest.mark.parametrize("allocator", ALLOCATORS)


def check(allocator: str, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START + ALLOCATORS[allocator] + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@every_allocator
def test_counters_are_those_of_the_allocator(allocator: str) -> None:
    check(
        allocator,
        """
tensors = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
del tensors[3]
pinned = torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True)
torch.cuda.synchronize()
device, = mine().devices
assert device.allocated_bytes == torch.cuda.memory_allocated() == 210 * MIB
assert device.reserved_bytes == torch.cuda.memory_reserved()
assert device.peak_allocated_bytes == 240 * MIB
assert device.name == torch.cuda.get_device_name()
assert mine().pinned_bytes >= 8 * MIB
""",
    )


@every_allocator
def test_the_drivers_number_is_context_and_reserved(allocator: str) -> None:
    check(
        allocator,
        """
tensors = [torch.empty(200 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
torch.cuda.synchronize()
gpu, use = my_gpu()
free, total = torch.cuda.mem_get_info()
assert gpu.name == torch.cuda.get_device_name() and not gpu.is_simulated
assert abs(gpu.dedicated_used_bytes - (total - free)) < 700 * MIB
if any("does not show all processes" in note for note in gpu.notes):
    assert use.driver_bytes is None and use.context_bytes is None  # a container hides them
else:
    assert use.driver_bytes <= gpu.dedicated_used_bytes
    assert 100 * MIB < use.context_bytes < 1500 * MIB, use.context_bytes
    total = use.context_bytes + use.counters.dedicated_bytes
    assert abs(use.driver_bytes - total) <= 4 * MIB, (use.driver_bytes, total)
""",
    )


@every_allocator
def test_watching_makes_no_context(allocator: str) -> None:
    check(
        allocator,
        """
x = torch.empty(MIB, device="cuda:0")
mine()
script = '''
from plimsoll.top import Watch
import ctypes
Watch().look()
active = ctypes.c_int()
flags = ctypes.c_uint()
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 0
'''
subprocess.run([sys.executable, "-c", script], check=True)
if torch.cuda.device_count() > 1:
    import ctypes
    active, flags = ctypes.c_int(), ctypes.c_uint()
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuDevicePrimaryCtxGetState(1, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 0  # publishing neither
""",
    )


@every_allocator
def test_a_snapshot_on_request_has_the_history(allocator: str) -> None:
    check(
        allocator,
        """
torch.cuda.memory._record_memory_history()
x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
mine()
child = subprocess.run(
    [sys.executable, "-c", "import sys\\nfrom plimsoll.telemetry import request_snapshot\\n"
     f"sys.stdout.buffer.write(request_snapshot({os.getpid()}))"],
    capture_output=True, check=True,
)
snapshot = pickle.loads(child.stdout)
assert any(block["address"] == x.data_ptr() for s in snapshot["segments"] for block in s["blocks"])
assert any(entry["addr"] == x.data_ptr() for entry in snapshot["device_traces"][0])
""",
    )


def test_shared_memory_is_told_apart() -> None:
    check(
        "elastic",
        """
plimsoll.set_tiers(policy="spill", dedicated="1GiB", shared="2GiB")
import warnings
warnings.simplefilter("ignore")
x = torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")
y = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
device, = mine().devices
assert device.num_spills >= 1
assert 400 * MIB <= device.shared_bytes <= 700 * MIB
gpu, use = my_gpu()
assert gpu.shared_used_bytes >= device.shared_bytes
""",
    )


def test_forked_workers_end_although_the_parent_publishes() -> None:
    check(
        "elastic",
        """
from torch.utils.data import DataLoader
x = torch.ones(MIB, device="cuda")
mine()
for batch in DataLoader(list(range(64)), batch_size=4, num_workers=4):
    x[: len(batch)] += batch.to("cuda")
torch.cuda.synchronize()
mine()
""",
    )
