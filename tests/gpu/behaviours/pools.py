"""Behaviours of `torch.cuda.MemPool`, and of allocators that the user provides."""

from __future__ import annotations

import ctypes
import inspect
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.gpu.behaviours.behaviour import Observed, UnavailableError, anything, at_most, behaviour
from tests.gpu.behaviours.streams import in_threads
from tests.gpu.behaviours.tools import MIB, empty, error_of, pool_bytes, room_for, stat

# The source declares CUDA's functions itself, so it needs no CUDA header. It is not linked with
# CUDA's runtime, because PyTorch has already loaded that library into the process.
OWN_ALLOCATOR = """
#include <atomic>
#include <cstddef>
extern "C" int cudaMalloc(void** pointer, size_t size);
extern "C" int cudaFree(void* pointer);
static std::atomic<int> allocations{0}, frees{0};
extern "C" void* own_alloc(size_t size, int, void*) {
  void* pointer = nullptr;
  ++allocations;
  return cudaMalloc(&pointer, size) == 0 ? pointer : nullptr;
}
extern "C" void own_free(void* pointer, size_t, int, void*) {
  ++frees;
  cudaFree(pointer);
}
extern "C" int own_allocations() { return allocations; }
extern "C" int own_frees() { return frees; }
"""


class OwnAllocator:
    """Compiles and loads OWN_ALLOCATOR, an allocator that counts its allocations and frees."""

    def __init__(self) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            raise UnavailableError("there is no g++")
        self._make_runtime_visible()
        self._folder = tempfile.TemporaryDirectory()
        source, library = (Path(self._folder.name) / name for name in ("own.cpp", "own.so"))
        source.write_text(OWN_ALLOCATOR)
        subprocess.run(
            [compiler, "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library)],
            check=True,
        )
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(library), "own_alloc", "own_free"
        )
        self._library = ctypes.CDLL(str(library))

    @staticmethod
    def _make_runtime_visible() -> None:
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "libcudart" in line:
                ctypes.CDLL(line.split(maxsplit=5)[-1], mode=ctypes.RTLD_GLOBAL)
                return
        raise UnavailableError("CUDA's runtime is not a library of its own")

    @property
    def calls(self) -> list[int]:
        """Returns the number of allocations and of frees so far."""
        return [int(self._library.own_allocations()), int(self._library.own_frees())]


def make_pool(**options: Any) -> Any:
    """Returns a pool. Raises UnavailableError if this PyTorch lacks an option."""
    known = inspect.signature(torch.cuda.MemPool.__init__).parameters
    missing = sorted(set(options) - set(known))
    if missing:
        raise UnavailableError(f"this PyTorch's MemPool has no {', '.join(missing)}")
    return torch.cuda.MemPool(**options)


@behaviour(elastic={"reserved": at_most})
def requests_land_in_the_pool_in_use() -> Observed:
    before = torch.cuda.memory_allocated()
    pool = torch.cuda.MemPool()
    outside = empty(12 * MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = [empty(12 * MIB), empty(1000)]
    after = empty(12 * MIB)
    own = pool.snapshot()
    starts = [(s["address"], s["address"] + s["total_size"]) for s in own]

    def is_in(tensor: Any) -> bool:
        return any(start <= tensor.data_ptr() < end for start, end in starts)

    return {
        "kind": [type(part).__name__ for part in pool.id],
        "where": [is_in(tensor) for tensor in (outside, *inside, after)],
        "allocated": pool_bytes(pool.id),
        "reserved": sum(segment["total_size"] for segment in own),
        "ids": sorted(
            {str(tuple(segment["segment_pool_id"]) == tuple(pool.id)) for segment in own}
        ),
        "all": torch.cuda.memory_allocated() - before,
        "filtered": len(torch.cuda.memory_snapshot(pool.id)) == len(own),
    }


@behaviour()
def uses_are_counted() -> Observed:
    pool = torch.cuda.MemPool()
    counts = [pool.use_count()]
    with torch.cuda.use_mem_pool(pool):
        counts.append(pool.use_count())
        tensor = empty(MIB)
    counts.append(pool.use_count())
    graph = torch.cuda.CUDAGraph()
    static = torch.ones(MIB, device="cuda")
    with torch.cuda.graph(graph, pool=pool.id):
        out = static * 2
    counts.append(pool.use_count())
    graph.replay()
    value = out.sum().item()
    del graph
    counts.append(pool.use_count())
    del tensor, out
    counts.append(pool.use_count())
    return {"counts": counts, "value": value}


@behaviour()
def a_deleted_pool_gives_its_memory_up() -> Observed:
    pool = torch.cuda.MemPool()
    before = torch.cuda.memory_reserved()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(256 * MIB)
    del tensor
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved() - before
    del pool
    return {
        "kept": kept,
        "left": torch.cuda.memory_reserved() - before,
        "allocated": torch.cuda.memory_allocated(),
    }


@behaviour(elastic={"reserved": at_most})
def tensors_outlive_their_pool() -> Observed:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((16 * MIB,), 3.0, device="cuda")
    del pool
    torch.cuda.empty_cache()
    others = [torch.zeros(16 * MIB, device="cuda") for _ in range(4)]
    value = tensor[::MIB].sum().item()
    del tensor, others
    torch.cuda.empty_cache()
    return {"value": value, "reserved": torch.cuda.memory_reserved()}


@behaviour(elastic={"reserved": at_most})
def a_pool_is_reused_by_itself_only() -> Observed:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(64 * MIB)
    address = tensor.data_ptr()
    del tensor
    outside = empty(64 * MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = empty(64 * MIB)
    return {
        "outside": outside.data_ptr() == address,
        "inside": inside.data_ptr() == address,
        "reserved": torch.cuda.memory_reserved(),
    }


@behaviour()
def the_inner_of_two_pools_is_used() -> Observed:
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        first = empty(12 * MIB)
        with torch.cuda.use_mem_pool(inner):
            second = empty(16 * MIB)
        third = empty(24 * MIB)
    return {
        "outer": pool_bytes(outer.id),
        "inner": pool_bytes(inner.id),
        "all": sum(tensor.numel() for tensor in (first, second, third)),
    }


@behaviour()
def threads_use_pools_of_their_own() -> Observed:
    pools = [torch.cuda.MemPool() for _ in range(3)]
    kept: list[Any] = []

    def work(index: int) -> None:
        with torch.cuda.use_mem_pool(pools[index]):
            kept.append([empty((index + 1) * 12 * MIB) for _ in range(5)])

    with torch.cuda.use_mem_pool(pools[0]):
        problems = in_threads(lambda: work(1), lambda: work(2), lambda: kept.append(empty(100)))
        kept.append(empty(12 * MIB))
    return {
        "problems": problems,
        "allocated": [pool_bytes(pool.id) for pool in pools],
        "elsewhere": pool_bytes((0, 0)),
    }


@behaviour(elastic={"reserved": at_most})
def a_pool_may_be_the_last_resort() -> Observed:
    seen: Observed = {}
    for use_on_oom in (True, False):
        pool = make_pool(use_on_oom=use_on_oom)
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(256 * MIB)
        del tensor
        try:
            with room_for(64 * MIB):
                seen[str(use_on_oom)] = empty(200 * MIB).fill_(1)[-1].item()
        except torch.OutOfMemoryError as error:
            seen[str(use_on_oom)] = type(error).__name__
        del pool
        torch.cuda.empty_cache()
    seen["reserved"] = torch.cuda.memory_reserved()
    return seen


@behaviour(elastic={"segments": anything, "reserved": at_most})
def a_pool_may_split_nothing() -> Observed:
    pool = make_pool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(4)]
    return {
        "segments": sorted(segment["total_size"] for segment in pool.snapshot()),
        "reserved": sum(segment["total_size"] for segment in pool.snapshot()),
        "values": [tensor.mean().item() for tensor in tensors],
    }


@behaviour()
def a_pool_and_side_streams() -> Observed:
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((4 * MIB,), 1.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            y = x + 1
            x.record_stream(side)
        del x
        z = torch.full((4 * MIB,), 7.0, device="cuda")
    torch.cuda.synchronize()
    return {"y": y.mean().item(), "z": z.mean().item(), "allocated": pool_bytes(pool.id)}


@behaviour()
def a_pool_over_an_allocator_of_ones_own() -> Observed:
    own = OwnAllocator()
    before = torch.cuda.memory_allocated()
    pool = torch.cuda.MemPool(own.allocator.allocator())
    outside = empty(12 * MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = [torch.full((3 * MIB,), float(i), device="cuda") for i in range(4)]
    calls = [own.calls]
    means = [tensor.mean().item() for tensor in inside]
    allocated = [pool_bytes(pool.id), torch.cuda.memory_allocated() - before]
    inside[0].record_stream(torch.cuda.Stream())
    del inside
    allocated += [pool_bytes(pool.id), torch.cuda.memory_allocated() - before]
    calls.append(own.calls)
    del pool
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    calls.append(own.calls)
    del outside
    return {
        "means": means,
        "calls": calls,
        "allocated": allocated,
        "at_last": torch.cuda.memory_allocated() - before,
    }


@behaviour()
def another_allocator_comes_too_late() -> Observed:
    own = OwnAllocator()
    tensor = empty(MIB)
    error = error_of(lambda: torch.cuda.memory.change_current_allocator(own.allocator))
    return {
        "error": error,
        "works": tensor.fill_(1).sum().item(),
        "calls": own.calls,
        "current": type(torch.cuda.memory._get_current_allocator()).__name__,
    }


@behaviour(own_process=True)
def another_allocator_in_time_takes_over() -> Observed:
    own = OwnAllocator()
    error = error_of(lambda: torch.cuda.memory.change_current_allocator(own.allocator))
    tensor = torch.ones(MIB, device="cuda")
    value = tensor.sum().item()
    del tensor
    return {
        "error": error,
        "value": value,
        "is_called": min(own.calls) > 0,
        "statistics": error_of(lambda: stat("allocation.all.current"))[:1],
    }
