"""Functions that several behaviours use."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

MIB = 1 << 20
GIB = 1 << 30
SHORT_SLEEP_CYCLES = 200_000_000  # takes about 0.1 s


def empty(size_bytes: int) -> Any:
    """Returns an uninitialized tensor of `size_bytes`."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def clean() -> None:
    """Restores the default settings, and empties the cache."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()


def error_of(function: Callable[[], object]) -> list[str]:
    """Returns the type and first line of the error that a call raises; empty if it raises none."""
    try:
        function()
    except Exception as error:
        return [type(error).__name__, (str(error).splitlines() or [""])[0]]
    return []


def result_of(function: Callable[[], Any]) -> Any:
    """Returns a call's result, or the type and first line of its error."""
    results: list[Any] = []
    return error_of(lambda: results.append(function())) or results[0]


def stat(name: str) -> int:
    """Returns a statistic of the current GPU."""
    value: int = torch.cuda.memory_stats().get(name, 0)
    return value


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """Lets PyTorch reserve at most `size_bytes` more GPU memory than it has reserved now."""
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + size_bytes
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def blocks(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns all blocks of a snapshot's segments."""
    return [block for segment in segments for block in segment["blocks"]]


def pool_bytes(pool_id: tuple[int, int], key: str = "allocated_size") -> int:
    """Returns the sum of `key` over a pool's segments, as a new snapshot shows them."""
    return sum(
        segment[key]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == tuple(pool_id)
    )
