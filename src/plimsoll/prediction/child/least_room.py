"""The least memory in which an allocator could have served the run's requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.child.allocator_needs import allocator_needs
from plimsoll.prediction.child.answer import why_no_replays
from plimsoll.prediction.child.recorded_run import MOST_EVENTS, own_conf, recorded_run

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

_PART = 400  # the result exceeds the least memory by at most 1/400 of the result


def add_least(simulation: Simulation, report: dict[str, Any]) -> None:
    """Adds the result of `least_reserved_bytes` to a report, for the GPU that needs the most.

    If the run had unlimited memory and used one GPU, `needs` tell the same, and are added too.
    """
    found = report["prediction"]
    if not found["fits"]:
        return
    if simulation.setup.unlimited and _add_needs(simulation, report):
        return
    least: int | None = 0
    for use in found["devices"]:
        if least is not None and use["peak_reserved_bytes"] > least:
            sizes = use["peak_allocated_bytes"], use["peak_reserved_bytes"]
            of_gpu = least_reserved_bytes(simulation, use["device"], *sizes)
            least = None if of_gpu is None else max(least, of_gpu)
    found["least_reserved_bytes"] = least


def _add_needs(simulation: Simulation, report: dict[str, Any]) -> bool:
    """Adds the `needs` of a run on one GPU. Returns whether they have the least memory too."""
    found = report["prediction"]
    if len(found["devices"]) != 1 or found["limit_bytes"] is not None:
        return False
    if why_no_replays(simulation) is not None:
        return False
    outside = found["context_bytes"] + found["nccl_bytes"]
    room = found["total_bytes"] - outside
    needs = allocator_needs(simulation, report["device"], room, outside)
    found["needs"] = [asdict(need) for need in needs]
    if not needs or needs[0].fits:
        return False
    found["least_reserved_bytes"] = needs[0].card_bytes - outside
    return True


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
    if simulation.setup.policy == "spill" or allocator.engine.history_size > MOST_EVENTS:
        return None
    recording = recorded_run(simulation, device)
    low, high = allocated, reserved

    def serves(memory: int) -> bool:
        (result,) = replay(
            recording,
            allocator=allocator.name,
            conf=own_conf(allocator) if allocator.name == "native" else None,
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
