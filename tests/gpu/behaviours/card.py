"""Behaviours of the whole card. Each runs while no other program uses the card."""

from __future__ import annotations

import torch

from tests.gpu.behaviours.behaviour import Observed, at_most, behaviour
from tests.gpu.behaviours.tools import GIB, MIB, empty

SLACK = 64 * MIB


def used() -> int:
    """Returns the bytes in use on the card."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    value: int = total - free
    return value


def about(size_bytes: int, expected_bytes: int) -> bool:
    """Returns whether two sizes differ by at most `SLACK`, which allows for the driver's memory."""
    return abs(size_bytes - expected_bytes) <= SLACK


@behaviour()
def empty_cache_gives_memory_back() -> Observed:
    warm_up = empty(1)
    before = used()
    tensor = empty(4 * GIB)
    is_taken = about(used() - before, 4 * GIB)
    del tensor
    is_kept = about(used() - before, 4 * GIB)
    torch.cuda.empty_cache()
    is_returned = about(used() - before, 0)
    del warm_up
    return {"taken": is_taken, "kept": is_kept, "returned": is_returned}


@behaviour(elastic={"reserved": at_most})
def memory_of_deleted_graphs_is_given_back() -> Observed:
    warm_up = empty(1)
    before = used()
    held = []
    for _ in range(3):
        static = torch.zeros(64 * MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static * 2
        graph.replay()
        held.append((graph, static, out))
    is_taken = used() - before >= 6 * 256 * MIB
    held.clear()
    del graph, static, out
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    is_returned = about(used() - before, 0)
    del warm_up
    return {"taken": is_taken, "returned": is_returned, "reserved": torch.cuda.memory_reserved()}


@behaviour()
def memory_of_a_deleted_pool_is_given_back() -> Observed:
    warm_up = empty(1)
    before = used()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(GIB)
    is_taken = about(used() - before, GIB)
    del tensor
    is_kept = about(used() - before, GIB)
    del pool
    is_returned = about(used() - before, 0)
    torch.cuda.empty_cache()
    is_returned_later = about(used() - before, 0)
    del warm_up
    return {
        "taken": is_taken,
        "kept": is_kept,
        "returned": is_returned,
        "returned_later": is_returned_later,
    }


@behaviour()
def without_caching_memory_goes_to_and_from_the_driver() -> Observed:
    cached = torch.full((1024,), 3.0, device="cuda")
    before, allocated = used(), torch.cuda.memory_allocated()
    torch.cuda.caching_allocator_enable(False)
    try:
        tensor = torch.full((GIB // 4,), 2.0, device="cuda")
        is_taken = about(used() - before, GIB)
        counted = torch.cuda.memory_allocated() - allocated
        value = tensor[-1].item() + cached[-1].item()
        late = torch.full((1024,), 5.0, device="cuda")
        del tensor
        is_returned = about(used() - before, 0)
        del cached
    finally:
        torch.cuda.caching_allocator_enable(True)
    value += late.sum().item()
    del late
    again = torch.ones(1024, device="cuda")
    return {
        "taken": is_taken,
        "counted": counted,
        "value": value,
        "returned": is_returned,
        "again": again.sum().item(),
        "allocated": torch.cuda.memory_allocated(),
    }


@behaviour()
def requests_larger_than_the_card_leave_it_as_it_was() -> Observed:
    kept = torch.ones(MIB, device="cuda")
    before = used()
    failures = 0
    for _ in range(3):
        try:
            empty(1 << 41)
        except torch.OutOfMemoryError:
            failures += 1
    return {
        "failures": failures,
        "unchanged": about(used() - before, 0),
        "value": kept.sum().item(),
    }
