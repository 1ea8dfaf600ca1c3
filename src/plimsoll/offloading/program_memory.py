"""What a program takes of a device's memory besides saved storages, as the allocator counts it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from plimsoll.base.errors import InputError
from plimsoll.engine.current import opened_engine


class Allocated(NamedTuple):
    """Bytes of a device's memory that are allocated: now, at the peak, and in all the time."""

    now: int
    peak: int
    total: int


class ProgramMemory:
    """Measures what the program takes of its own between two events.

    Attributes:
        device: The device.
        allocated: When it was last looked at.
        has_changed: Since then, by offloading itself.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.allocated = allocated_bytes(device)
        self.has_changed = False
        self._saved_then = 0

    def measure(self) -> int:
        """The most bytes that the program took since `settle`."""
        before, now = self.allocated, allocated_bytes(self.device)
        grown = before.now + now.total - before.total
        self.allocated = now
        self.has_changed = False
        return max(min(grown, now.peak), now.now) - self._saved_then

    def settle(self, saved_bytes: int) -> None:
        """The program goes on; so much on the card are saved storages."""
        if self.has_changed:
            self.allocated = allocated_bytes(self.device)
        self._saved_then = saved_bytes


def allocated_bytes(device: Any) -> Allocated:
    """The allocator's counters; `torch.cuda.memory_stats` takes many times as long.

    Raises:
        InputError: If the allocator has none.
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
