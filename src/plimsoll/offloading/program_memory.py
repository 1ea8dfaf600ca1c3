"""Measures a program's own memory, from the allocator's counters.

Own memory is all allocated memory except the storages that autograd saved, which offloading moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from plimsoll.base.errors import InputError
from plimsoll.engine.current import opened_engine


class Allocated(NamedTuple):
    """Allocated bytes of a device: now, at the peak, and the sum of all allocations so far."""

    now: int
    peak: int
    total: int


class ProgramMemory:
    """Measures the peak of the program's own memory between calls of `settle` and `measure`.

    Attributes:
        device: The device.
        allocated: The allocator's counters at the last reading.
        has_changed: Whether offloading itself has allocated or freed memory since the last reading.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.allocated = allocated_bytes(device)
        self.has_changed = False
        self._saved_then = 0

    def measure(self) -> int:
        """Returns the peak of the program's own memory since `settle`."""
        before, now = self.allocated, allocated_bytes(self.device)
        grown = before.now + now.total - before.total
        self.allocated = now
        self.has_changed = False
        return max(min(grown, now.peak), now.now) - self._saved_then

    def settle(self, saved_bytes: int) -> None:
        """Begins a measurement, while saved storages take `saved_bytes` on the card."""
        if self.has_changed:
            self.allocated = allocated_bytes(self.device)
        self._saved_then = saved_bytes


def allocated_bytes(device: Any) -> Allocated:
    """Reads the allocator's counters, many times faster than `torch.cuda.memory_stats`.

    Raises:
        InputError: If the allocator has no counters.
    """
    engine = opened_engine(device.index)
    if engine is not None:
        return Allocated(*engine.dedicated_allocated_bytes)
    try:
        counters = torch._C._cuda_memoryStats(device.index)["allocated_bytes"]["all"]
    except RuntimeError as error:
        raise InputError(
            f"plimsoll.offload needs an allocator that counts what is allocated: {error}"
        ) from error
    return Allocated(counters["current"], counters["peak"], counters["allocated"])
