"""Makes a recording of a simulated run's requests, and replays it with other settings or memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import GRANULE
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.recording import LoadedTrace, Recording
from plimsoll.torch.simulated.memory_limits import without_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.torch.simulated.simulation import Simulation

_EXPANDABLE = "expandable_segments:True"
MOST_EVENTS = 4 << 20
"""Runs with more events are not replayed with several sizes, as that takes too long."""


def recorded_run(simulation: Simulation, device: int) -> Recording:
    """Returns the requests of a device as a recording, for replays."""
    columns = simulation.allocators[device].engine.history_columns()
    action, address, size, stream, time_us, _, shared = columns
    keep = np.isin(action, [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED])
    none = np.zeros(len(action), dtype=np.uint64)
    batch = EventBatch.of(
        {
            "action": action,
            "address": address,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "pool_first": none,
            "pool_second": none,
            "shared": shared,
        }
    )[keep]
    return Recording("the simulated run", [LoadedTrace(device, batch, [])], {})


def own_conf(allocator: Allocator) -> str:
    """Returns the run's own settings for a replay, without a limit of the program's."""
    return without_limit(allocator.conf) if allocator.name == "native" else ""


def other_settings(allocator: Allocator) -> list[tuple[str, str]]:
    """Returns allocators and settings that may reserve less than the run's own, PyTorch's first.

    Returns nothing unless the run used PyTorch's own allocator.
    """
    if allocator.name != "native":
        return []
    own, settings = own_conf(allocator), []
    if "expandable_segments" not in own:
        settings.append(("native", f"{own},{_EXPANDABLE}" if own else _EXPANDABLE))
    return [*settings, ("elastic", "")]


def least_memory(bounds: tuple[int, int], serves: Callable[[int], bool]) -> int:
    """Returns the least memory that suffices, rounded up to a `GRANULE`.

    The least memory lies between the two bounds.
    """
    low, high = bounds[0] // GRANULE, -(-bounds[1] // GRANULE)
    while high - low > 1:
        middle = (low + high) // 2
        if serves(middle * GRANULE):
            high = middle
        else:
            low = middle
    return min(high * GRANULE, bounds[1])
