"""Tests engines whose own allocator, built on CUDA's driver, unmaps memory while they sleep."""

from __future__ import annotations

import ctypes
import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from plimsoll.prediction.predict import predict
from tests.apart import ROOT
from tests.simulated import PROGRAMS, on_simulated_gpus, output_of, simulate

torch = pytest.importorskip("torch")

MIB = 1 << 20
POOL = PROGRAMS / "sleeping" / "pool.py"
WEIGHTS, CACHE = 432 * MIB, 700 * MIB
"""Bytes of the program's two pools. Each weight is rounded up to a multiple of 2 MiB."""
COPIES = (512 + 128 + 32 + 2) * MIB
"""Bytes of page-locked memory for copies of the weights.

Each weight has its own copy, whose size PyTorch rounds up to a power of two.
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the program's allocator; links it to a stub of libcuda.so.1."""
    folder = tmp_path_factory.mktemp("sleeping")
    names = [
        *("cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap"),
        *("cuMemSetAccess", "cuMemUnmap"),
    ]
    driver = "".join(f"int {name}() {{ return 999; }}\n" for name in names)
    (folder / "driver.c").write_text(driver)
    source = PROGRAMS / "sleeping" / "memory.cpp"
    for command in (
        ["gcc", "-shared", "-fPIC", "driver.c", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so"],
        ["g++", "-std=c++20", "-shared", "-fPIC", str(source), "-Wl,--no-as-needed", "-L.",
         "-lcuda", "-o", "memory.so"],
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, check=True)
    (folder / "libcuda.so").unlink()
    return folder / "memory.so"


def test_sleep_frees_what_waking_takes_again(library: Path) -> None:
    found = json.loads(output_of(POOL, arguments=[str(library)]))
    free = dict(found["free"])
    assert free["asleep"] == free["dropped"] == free["awake"] + WEIGHTS + CACHE
    assert free["weights"] == free["awake"] + CACHE
    assert all(each == free[what] for what, each in found["free"])
    assert found["copied"] == WEIGHTS
    assert found["in_pools"] == {"1": WEIGHTS, "2": CACHE}
    # PyTorch counts a pool's memory whether the pool is awake or asleep.
    assert found["reserved"] == WEIGHTS + CACHE + 2 * MIB
    assert found["outside"]
    assert found["equal"] == [True] * 4
    assert found["same_addresses"]


def test_a_prediction_counts_sleeping_memory_once(library: Path) -> None:
    """A trainer fits into a sleeping engine's memory; it does not fit once the engine wakes."""
    found = predict(POOL, [str(library), "train"], gpu="RTX 4060 Laptop", conf="")
    assert found.fits
    assert found.peak_reserved_bytes > found.total_bytes
    assert found.device_used_bytes <= found.total_bytes
    assert "memory was taken of CUDA's driver itself" in str(found.no_other_cards)
    assert found.host_peak_bytes is not None
    assert found.host_peak_bytes > COPIES
    found = predict(POOL, [str(library), "wake"], gpu="RTX 4060 Laptop")
    assert found.fits is False


def test_waking_without_room_is_refused_in_the_drivers_words(library: Path) -> None:
    output_of(wakes_without_room, arguments=[str(library)])


def wakes_without_room(library: str) -> None:
    from tests.programs.sleeping.pool import CACHE as TAG
    from tests.programs.sleeping.pool import SleepingPools

    pools = SleepingPools(library)
    with pools.use(TAG):
        cache = torch.zeros(700 * MIB, dtype=torch.uint8, device="cuda")
    pools.sleep(None)
    held = torch.empty(torch.cuda.mem_get_info()[0] - 500 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        pools.wake(TAG)
    del held
    torch.cuda.empty_cache()
    pools.wake(TAG)
    assert cache.numel() == 700 * MIB


def test_expandable_segments_leave_such_a_pool_to_its_allocator(library: Path) -> None:
    out = output_of(
        POOL,
        arguments=[str(library)],
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    found = json.loads(out)
    assert found["in_pools"] == {"1": WEIGHTS, "2": CACHE}


def test_elastic_refuses_such_a_pool_in_one_line(library: Path) -> None:
    done = simulate(POOL, "--allocator", "elastic", arguments=[str(library)])
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()
    assert any("only with --allocator native" in line for line in last)


@on_simulated_gpus()
def test_an_allocator_in_python_and_threads_that_free_tensors_do_not_wait_for_each_other() -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def give(size: int, device: int, stream: int | None) -> int:
        del device, stream
        for _ in range(10_000):  # long enough for a thread switch in Python
            pass
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        return address.value

    def take_back(address: int, size: int, device: int, stream: int | None) -> None:
        del size, device, stream
        assert driver.cuMemFree_v2(ctypes.c_uint64(address)) == 0

    sizes = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
    functions: list[Any] = [
        ctypes.CFUNCTYPE(ctypes.c_void_p, *sizes)(give),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, *sizes)(take_back),
    ]
    own = torch._C._cuda_customAllocator(
        *(ctypes.cast(each, ctypes.c_void_p).value for each in functions)
    )
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            torch.empty(MIB, device="cuda")
            torch.cuda.memory_stats()

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    pool = torch.cuda.MemPool(own)
    with torch.cuda.use_mem_pool(pool):
        kept = [torch.empty(3 * MIB, device="cuda") for _ in range(100)]
    over.set()
    for thread in threads:
        thread.join()
    assert sum(segment["total_size"] for segment in pool.snapshot()) >= 100 * 12 * MIB
    del kept


@on_simulated_gpus(gpu="H100")
def test_the_driver_and_the_runtime_answer_by_ctypes() -> None:
    driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so")
    assert driver.cuInit(0) == 0
    count, device, major = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device) == 0
    unknown, not_supported = ctypes.c_int(), 801
    assert driver.cuDeviceGetAttribute(ctypes.byref(unknown), 999, device) == not_supported
    assert (count.value, major.value) == (1, 9)
    assert driver.cuDeviceGet(ctypes.byref(device), 1) == 101
    driver_free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemGetInfo(ctypes.byref(driver_free), ctypes.byref(total)) == 0
    assert (driver_free.value, total.value) == torch.cuda.mem_get_info()
    with pytest.raises(AttributeError):
        driver.cuNoSuchFunction  # noqa: B018
    address, free = ctypes.c_void_p(), torch.cuda.mem_get_info()[0]
    assert runtime.cudaMalloc(ctypes.byref(address), 64 * MIB) == 0
    assert free - torch.cuda.mem_get_info()[0] == 64 * MIB
    host = torch.zeros(64, dtype=torch.uint8)
    assert runtime.cudaMemcpy(host.data_ptr(), address, 64, 2) == 0
    assert runtime.cudaMemcpy(host.data_ptr(), 1 << 51, 64, 2) == 1
    assert runtime.cudaFree(address) == 0
    assert torch.cuda.mem_get_info()[0] == free
    assert runtime.cudaMalloc(ctypes.byref(address), 1 << 40) == 2
    assert runtime.cudaGetErrorString(2) == b"out of memory"
    assert runtime.cudaIpcGetMemHandle(address, address) == 801


@on_simulated_gpus(gpu="H100")
def test_virtual_memory_is_taken_when_it_is_created_and_free_once_it_is_unmapped() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    size, address, handle = ctypes.c_size_t(64 * MIB), ctypes.c_uint64(), ctypes.c_uint64()
    no = ctypes.c_uint64(0)
    assert driver.cuMemAddressReserve(ctypes.byref(address), size, no, no, no) == 0
    # A CUmemAllocationProp: the type is pinned (1), no handle type is requested (0), and the
    # location is a device (1) with the number 0.
    properties = (ctypes.c_int * 8)(1, 0, 1, 0)
    assert driver.cuMemCreate(ctypes.byref(handle), size, properties, no) == 0
    assert free - torch.cuda.mem_get_info()[0] == 64 * MIB
    assert driver.cuMemMap(address, size, no, handle, no) == 0
    # fails, because memory is already mapped there
    assert driver.cuMemMap(address, size, no, handle, no) == 1
    access = (ctypes.c_int * 3)(1, 0, 3)
    assert driver.cuMemSetAccess(address, size, access, ctypes.c_size_t(1)) == 0
    assert driver.cuMemRelease(handle) == 0
    assert free - torch.cuda.mem_get_info()[0] == 64 * MIB
    assert driver.cuMemUnmap(address, size) == 0
    assert torch.cuda.mem_get_info()[0] == free
    assert driver.cuMemAddressFree(address, size) == 0
    odd = ctypes.c_size_t(MIB)
    assert driver.cuMemCreate(ctypes.byref(handle), odd, properties, no) == 1


ENGINE = """
import sys
import torch
from vllm.v1.worker.gpu_worker import Worker

worker = Worker()
worker.compile_or_warm_up_model()
cached = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
del cached
worker.sleep(1)
worker.wake_up(["weights"])
worker.wake_up(["kv_cache"])
worker.sleep(level=2)
if "trainer" in sys.argv:
    held = torch.empty(torch.cuda.mem_get_info()[0] - (500 << 20), dtype=torch.uint8, device="cuda")
worker.wake_up()
"""


@pytest.mark.parametrize("beside", ["alone", "trainer"])
def test_an_engine_says_what_its_sleep_frees_and_whether_it_wakes(
    beside: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "vllm" / "v1" / "worker"
    modules.mkdir(parents=True)
    for folder in (modules, modules.parent, modules.parents[1]):
        (folder / "__init__.py").write_text("__version__ = '1.0'")
    worker = (PROGRAMS / "sleeping" / "engine_worker.py").read_text()
    (modules / "gpu_worker.py").write_text(worker)
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    monkeypatch.setenv("SLEEPING_LIBRARY", str(library))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = predict(script, [beside], gpu="L4")
    assert found.serving is not None
    first, second = found.serving.sleeps
    assert (first.level, first.times, second.level, second.times) == (1, 1, 2, 1)
    assert first.unmapped_bytes == first.waking_bytes == WEIGHTS + CACHE
    assert first.freed_bytes == WEIGHTS + CACHE + 100 * MIB
    assert (first.host_bytes, second.host_bytes) == (COPIES, 0)
    assert first.left_bytes == second.left_bytes
    assert second.free_bytes is not None
    if beside == "alone":
        assert found.fits
        assert second.waking_bytes == WEIGHTS + CACHE
        return
    assert found.fits is False
    assert found.serving.failed_in == "wake_up"
    assert second.waking_bytes is None
    assert 498 * MIB < second.free_bytes <= 502 * MIB
    lines = str(found).splitlines()
    assert lines[0].endswith("does not fit on L4: vLLM 1.0 runs out of memory while it wakes up")
    assert lines[1].startswith("Why: waking takes 1.11 GiB again, and the card has ")
