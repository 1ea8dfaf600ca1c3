"""The least memory in which an allocator could have served the run's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.child.answer import recorded_run
from plimsoll.torch.simulated.memory_limits import without_limit

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

_PART = 400  # the result exceeds the least memory by at most 1/400 of the result
_MOST_EVENTS = 4 << 20  # runs with more events are not replayed, as that takes too long


def add_least(simulation: Simulation, report: dict[str, Any]) -> None:
    """Adds the result of `least_reserved_bytes` to a report, for the GPU that needs the most."""
    found = report["prediction"]
    if not found["fits"]:
        return
    least: int | None = 0
    for use in found["devices"]:
        if least is not None and use["peak_reserved_bytes"] > least:
            sizes = use["peak_allocated_bytes"], use["peak_reserved_bytes"]
            of_gpu = least_reserved_bytes(simulation, use["device"], *sizes)
            least = None if of_gpu is None else max(least, of_gpu)
    found["least_reserved_bytes"] = least


def least_reserved_bytes(
    simulation: Simulation, device: int, allocated: int, reserved: int
) -> int | None:
    """Returns the least memory that serves a run's requests.

    Bisects the range from `allocated` to `reserved`, and replays the requests with each size that
    it tries.

    Args:
        simulation: The simulated GPUs.
        device: The device of the requests.
        allocated: The most bytes in live blocks, which no allocator can go below.
        reserved: The most that the run itself reserved.

    Returns:
        The bytes. None if requests that do not fit get host memory (the policy `spill`), or if the
        run has too many events to replay.
    """
    allocator = simulation.allocators[device]
    if simulation.setup.policy == "spill" or allocator.engine.history_size > _MOST_EVENTS:
        return None
    recording = recorded_run(simulation, device)
    low, high = allocated, reserved

    def serves(memory: int) -> bool:
        (result,) = replay(
            recording,
            allocator=allocator.name,
            conf=without_limit(allocator.conf) if allocator.name == "native" else None,
            gpu_memory=memory,
            version=allocator.version,
        )
        return result.fits

    try:
        while high - low > high // _PART:
            middle = (low + high) // 2
            if serves(middle):
                high = middle
            else:
                low = middle
    except InputError:
        return None
    return high
