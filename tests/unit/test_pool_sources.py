"""Tests private pools, `MemPool(allocator)`, whose segments come from the program's allocator."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from plimsoll import Allocator, OutOfMemoryError, SimulatedGpu

MIB = 1 << 20
GIVE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)  # the types that PyTorch's allocator functions have
TAKE_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
POOL = (0, 1)


class Source:
    """A program's own allocator. It refuses requests beyond `room` live bytes."""

    def __init__(self, room: int) -> None:
        self.live: dict[int, int] = {}
        self.room = room
        self.asked: list[int] = []
        self._next = 1 << 50
        self.give = GIVE(self._give)
        self.take_back = TAKE_BACK(self._take_back)

    def addresses(self) -> tuple[int, int]:
        give, take_back = (
            ctypes.cast(function, ctypes.c_void_p).value for function in (self.give, self.take_back)
        )
        assert give is not None
        assert take_back is not None
        return give, take_back

    def _give(self, size: int, device: int, stream: int | None) -> int | None:
        del device, stream
        self.asked.append(size)
        if sum(self.live.values()) + size > self.room:
            return None
        self._next += size
        self.live[self._next] = size
        return self._next

    def _take_back(self, address: int, size: int, device: int, stream: int | None) -> None:
        del device, stream
        assert self.live.pop(address) == size


def allocator_with(source: Source, conf: str = "", **options: Any) -> Allocator:
    allocator = Allocator(SimulatedGpu("1GiB"), conf=conf, **options)
    engine = allocator.engine
    engine.use_pool(*POOL)
    engine.set_pool_source(*POOL, *source.addresses())
    return allocator


def pooled(allocator: Allocator, size: int) -> int:
    engine = allocator.engine
    engine.begin_allocate_to_pool(*POOL, None)
    try:
        return allocator.malloc(size)
    finally:
        engine.end_allocate_to_pool(*POOL)
        engine.release_pool(*POOL)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_pools_segments_come_from_its_source_and_go_back_there(conf: str) -> None:
    source = Source(1 << 30)
    allocator = allocator_with(source, conf)
    outside = allocator.malloc(3 * MIB)
    used = allocator.gpu.dedicated_used_bytes
    large, small = pooled(allocator, 30 * MIB), pooled(allocator, 1000)
    assert source.asked == [30 * MIB, 2 * MIB]
    assert large in source.live
    assert small in source.live
    assert allocator.gpu.dedicated_used_bytes == used
    assert allocator.memory_reserved() == used + 32 * MIB
    allocator.free(large)
    # reused from the pool's cache, without asking the source
    assert pooled(allocator, 29 * MIB) == large
    assert len(source.asked) == 2
    for address in (large, small, outside):
        allocator.free(address)
    allocator.engine.release_pool(*POOL)
    allocator.empty_cache()
    assert source.live == {}
    assert allocator.memory_reserved() == 0


def test_a_source_that_refuses_is_asked_again_once_cached_memory_is_free() -> None:
    source = Source(20 * MIB)
    allocator = allocator_with(source)
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.memory_reserved() == 40 * MIB
    with pytest.raises(OutOfMemoryError):
        pooled(allocator, 30 * MIB)
    assert source.asked == [30 * MIB, 30 * MIB]
    assert allocator.memory_reserved() == 0
    assert allocator.memory_stats()["num_ooms"] == 1
    assert pooled(allocator, 16 * MIB) in source.live


def test_a_limit_refuses_before_the_source_is_asked() -> None:
    source = Source(1 << 30)
    allocator = allocator_with(source)
    allocator.set_per_process_memory_fraction(0.01)
    with pytest.raises(OutOfMemoryError):
        pooled(allocator, 30 * MIB)
    assert source.asked == []


def test_cached_memory_goes_back_where_the_limit_would_refuse_a_segment() -> None:
    source = Source(1 << 30)
    allocator = allocator_with(source)
    allocator.free(allocator.malloc(100 * MIB))
    assert allocator.memory_reserved() == 100 * MIB
    allocator.set_per_process_memory_fraction(120 / 1024)
    pooled(allocator, 30 * MIB)
    assert len(source.asked) == 1
    assert allocator.memory_reserved() == 30 * MIB


def test_a_source_may_use_the_allocator_itself() -> None:
    gpu = SimulatedGpu("1GiB")
    allocator = Allocator(gpu)
    engine = allocator.engine
    taken: list[int] = []

    def give(size: int, device: int, stream: int | None) -> int:
        del device, stream
        engine.end_allocate_to_pool(*POOL)
        taken.append(allocator.malloc(size))
        engine.begin_allocate_to_pool(*POOL, None)
        return taken[-1]

    source = Source(0)
    source.give = GIVE(give)
    engine.use_pool(*POOL)
    engine.set_pool_source(*POOL, *source.addresses())
    assert pooled(allocator, 30 * MIB) == taken[0]


@pytest.mark.parametrize("name", ["elastic", "uncached"])
def test_other_allocators_refuse_a_source(name: Any) -> None:
    allocator = Allocator(SimulatedGpu("1GiB"), allocator=name)
    allocator.engine.use_pool(*POOL)
    with pytest.raises(ValueError, match="only PyTorch's rules"):
        allocator.engine.set_pool_source(*POOL, *Source(0).addresses())
