"""Runs an engine whose pools of weights and cache leave the card and come back, as in vLLM.

Run it as `python pool.py LIBRARY [train|wake]` on real or simulated GPUs. LIBRARY is memory.cpp
compiled. Without a second argument, it prints how much of the card is free after each step. With
"train", a trainer takes memory while the engine sleeps. With "wake", the trainer does this too, and
the engine wakes before the trainer has freed its memory.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MIB = 1 << 20
WEIGHTS, CACHE = 1, 2
WEIGHT_MIB = (300, 100, 30, 1)


class SleepingPools:
    """Pools of tagged memory that leaves the card and comes back at the same addresses."""

    def __init__(self, library: str) -> None:
        torch.cuda.init()
        self._driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        self._lib = ctypes.CDLL(library)
        self._lib.sleeping_count.restype = self._lib.sleeping_size.restype = ctypes.c_size_t
        self._lib.sleeping_address.restype = ctypes.c_uint64
        own = torch.cuda.memory.CUDAPluggableAllocator(library, "sleeping_malloc", "sleeping_free")
        self._allocator = own.allocator()
        self.pools: dict[int, Any] = {}
        self._copies: dict[int, Any] = {}

    @contextmanager
    def use(self, tag: int) -> Iterator[None]:
        """Takes memory from the tag's pool within the `with` block."""
        self._lib.sleeping_tag(tag)
        self.pools[tag] = torch.cuda.MemPool(self._allocator)
        with torch.cuda.use_mem_pool(self.pools[tag]):
            yield

    def _places(self) -> Iterator[tuple[int, int, int, int]]:
        for i in range(self._lib.sleeping_count()):
            place = ctypes.c_size_t(i)
            yield (
                i,
                self._lib.sleeping_tag_of(place),
                self._lib.sleeping_address(place),
                self._lib.sleeping_size(place),
            )

    def sleep(self, kept: int | None) -> int:
        """Copies memory of tag `kept` to the host. Unmaps all memory. Returns the copied bytes."""
        torch.cuda.synchronize()
        copied = 0
        for i, tag, address, size in self._places():
            if tag == kept:
                copy = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                copied += size
                self._check(
                    self._driver.cuMemcpyDtoH_v2(
                        ctypes.c_void_p(copy.data_ptr()), ctypes.c_uint64(address),
                        ctypes.c_size_t(size),
                    )
                )  # fmt: skip
                self._copies[i] = copy
            self._check(self._lib.sleeping_unmap(ctypes.c_size_t(i)))
        torch.cuda.empty_cache()
        return copied

    def wake(self, *tags: int) -> None:
        """Maps the memory of some tags again; restores the content that was kept."""
        for i, tag, address, size in self._places():
            if tag not in tags:
                continue
            self._check(self._lib.sleeping_map(ctypes.c_size_t(i)))
            copy = self._copies.pop(i, None)
            if copy is not None:
                self._check(
                    self._driver.cuMemcpyHtoD_v2(
                        ctypes.c_uint64(address), ctypes.c_void_p(copy.data_ptr()),
                        ctypes.c_size_t(size),
                    )
                )  # fmt: skip

    @staticmethod
    def _check(status: int) -> None:
        if status == 2:
            raise torch.OutOfMemoryError("the driver has no memory: CUDA_ERROR_OUT_OF_MEMORY")
        if status != 0:
            raise RuntimeError(f"the driver returned {status}")


def train(library: str, *, wakes: bool) -> None:
    """Lets a trainer fill a sleeping engine's card; with `wakes`, the engine wakes too early."""
    pools = SleepingPools(library)
    with pools.use(WEIGHTS):
        weights = torch.zeros(WEIGHT_MIB[0] * MIB, dtype=torch.uint8, device="cuda")
    with pools.use(CACHE):
        cache = torch.zeros(3 << 30, dtype=torch.uint8, device="cuda")
    pools.sleep(WEIGHTS)
    trained = torch.zeros(5 << 30, dtype=torch.uint8, device="cuda")
    if wakes:
        pools.wake(WEIGHTS, CACHE)
    del trained, weights, cache


def cycle(library: str) -> None:
    """Sleeps and wakes three times, then drops all contents and wakes tag by tag."""
    pools = SleepingPools(library)
    outside = torch.ones(1024, device="cuda")
    with pools.use(WEIGHTS):
        weights = [
            torch.full((size * MIB,), value, dtype=torch.uint8, device="cuda")
            for value, size in enumerate(WEIGHT_MIB)
        ]
    with pools.use(CACHE):
        cache = torch.zeros(700 * MIB, dtype=torch.uint8, device="cuda")
    addresses = [tensor.data_ptr() for tensor in (*weights, cache)]
    free: list[tuple[str, int]] = []

    def note(what: str) -> None:
        torch.cuda.synchronize()
        free.append((what, torch.cuda.mem_get_info()[0]))

    note("awake")
    copied = 0
    for _ in range(3):
        copied = pools.sleep(WEIGHTS)
        note("asleep")
        pools.wake(WEIGHTS, CACHE)
        note("awake")
        cache.zero_()
    equal = [int(tensor[-1]) == value for value, tensor in enumerate(weights)]
    pools.sleep(None)
    note("dropped")
    pools.wake(WEIGHTS)
    note("weights")
    pools.wake(CACHE)
    note("awake")
    cache.zero_()
    print(json.dumps({
        "free": free,
        "copied": copied,
        "reserved": torch.cuda.memory_reserved(),
        "allocated": torch.cuda.memory_allocated(),
        "in_pools": {tag: sum(s["total_size"] for s in pool.snapshot())
                     for tag, pool in pools.pools.items()},
        "outside": int(outside.sum()) == 1024,
        "equal": equal,
        "same_addresses": addresses == [tensor.data_ptr() for tensor in (*weights, cache)],
    }))  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(sys.argv[1], wakes=sys.argv[2] == "wake")
    else:
        cycle(sys.argv[1])
