"""The peaks of each GPU's counters over a whole run, even if the program resets them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.base.telemetry.peak_resets import before_each_peak_reset

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.engine.shared_use import SharedUse
    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.torch.simulated.simulation import Simulation


@dataclass(frozen=True)
class HighWaterMark:
    """The high-water mark of one GPU.

    Attributes:
        allocated_bytes: The most bytes in live blocks.
        reserved_bytes: The most bytes reserved from the driver.
        dedicated_bytes: The most bytes reserved in the GPU's own memory.
        shared: The use of host memory, either by blocks that spilled because the GPU's own memory
            was full, or by blocks that the program placed in host memory. None if blocks cannot
            spill and the program placed none there.
    """

    allocated_bytes: int
    reserved_bytes: int
    dedicated_bytes: int
    shared: SharedUse | None


class HighWaterMarks:
    """Remembers PyTorch's peaks when the program resets them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._before_resets: dict[int, HighWaterMark] = {}

    def install(self, torch: ModuleType) -> None:
        """Begins to observe resets of the peaks."""
        self._simulation.watchers.guarded("resets of peaks", self._install)(torch)

    def _install(self, torch: ModuleType) -> None:
        keep = self._simulation.watchers.guarded("peaks before a reset", self._keep)
        before_each_peak_reset(torch, keep)

    def _keep(self, device: int) -> None:
        self._before_resets[device] = self.of(device)

    def of(self, device: int) -> HighWaterMark:
        """Returns the peaks of a device so far."""
        now = _peak(self._simulation.allocators[device])
        before = self._before_resets.get(device)
        return now if before is None else _highest(before, now)

    def card_bytes(self, device: int) -> int:
        """Returns the most that nvidia-smi would show, CUDA's context included, in bytes.

        It is the smaller of two figures: the most that the driver had given out at one time, and
        the sum of the peaks of PyTorch and of the memory outside PyTorch. The sum is too large if
        the peaks come at different times, or if a pool's own allocator unmaps memory that PyTorch
        still counts. The driver's figure is too large because it counts in units of 2 MiB.
        """
        simulation = self._simulation
        context = simulation.context_bytes(device)
        outside = simulation.nccl_bytes(device) + simulation.driver_memory.most_bytes(device)
        peaks = context + outside + self.of(device).dedicated_bytes
        return min(peaks, simulation.machine.gpus[device].most_dedicated_used_bytes)


def _peak(allocator: Allocator) -> HighWaterMark:
    reserved = allocator.max_memory_reserved()
    shared = allocator.shared_use()
    return HighWaterMark(
        allocator.max_memory_allocated(),
        reserved,
        reserved if shared is None else shared.peak_dedicated_bytes,
        shared,
    )


def _highest(one: HighWaterMark, other: HighWaterMark) -> HighWaterMark:
    shared = other.shared
    if one.shared is not None and shared is not None:
        shared = replace(
            shared,
            peak_dedicated_bytes=max(one.shared.peak_dedicated_bytes, shared.peak_dedicated_bytes),
            peak_bytes=max(one.shared.peak_bytes, shared.peak_bytes),
            peak_allocated_bytes=max(one.shared.peak_allocated_bytes, shared.peak_allocated_bytes),
        )
    return HighWaterMark(
        max(one.allocated_bytes, other.allocated_bytes),
        max(one.reserved_bytes, other.reserved_bytes),
        max(one.dedicated_bytes, other.dedicated_bytes),
        shared or one.shared,
    )
