"""Reads the memory counters of simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.telemetry.counter_source import Counters, device_counters

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


class SimulatedCounters:
    """Reads the memory counters of this process's simulated GPUs."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    @property
    def allocator(self) -> str:
        """Name of the GPUs' allocator."""
        return self._simulation.allocators[0].name

    def read(self) -> Counters:
        """Returns the present counters."""
        simulation = self._simulation
        devices = []
        pinned = 0
        for index, (allocator, profile) in enumerate(
            zip(simulation.allocators, simulation.profiles, strict=True)
        ):
            device = device_counters(
                allocator.engine.statistics(),
                index=index,
                name=profile.full_name,
                is_simulated=True,
                total_bytes=profile.total_bytes,
                used_bytes=allocator.gpu.dedicated_used_bytes,
                context_bytes=simulation.context_bytes(index),
                elastic=allocator.engine if allocator.name == "elastic" else None,
            )
            devices.append(device)
            pinned += max(allocator.gpu.shared_used_bytes - device.shared_bytes, 0)
        return Counters(tuple(devices), pinned, simulation.machine.shared_total_bytes)
