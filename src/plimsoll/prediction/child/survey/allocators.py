"""Computes the memory that a run would reserve with other allocators or allocator settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.child.recorded_run import (
    least_memory,
    other_settings,
    own_conf,
    recorded_run,
)
from plimsoll.prediction.survey import AllocatorUse
from plimsoll.torch.simulated.memory_limits import heeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.recordings.recording import Recording
    from plimsoll.torch.simulated.simulation import Simulation


def try_allocators(simulation: Simulation, device: int, room: int | None) -> list[AllocatorUse]:
    """Replays a run's requests with the run's own allocator settings and with other settings.

    Returns the memory use with each setting.

    Args:
        simulation: The GPUs of the run.
        device: The card whose requests are replayed.
        room: The memory of the card for PyTorch and NCCL; None for no bound.
    """
    recording, allocator = recorded_run(simulation, device), simulation.allocators[device]
    if room is not None:
        room -= simulation.nccl_bytes(device)
        total = simulation.profiles[device].total_bytes
        limits = heeded(simulation.limits[device])
        room = min([room, *(limit.bytes_of(total) for limit in limits)])
    settings = [(allocator.name, own_conf(allocator)), *other_settings(allocator)]
    return [use for name, conf in settings for use in _try(recording, allocator, name, conf, room)]


def _try(
    recording: Recording, own: Allocator, name: str, conf: str, room: int | None
) -> Iterator[AllocatorUse]:
    def replayed(memory: int | None) -> ReplayResult:
        (result,) = replay(
            recording,
            allocator=name,  # type: ignore[arg-type]
            conf=conf if name == "native" else None,
            gpu_memory=memory,
            version=own.version,
        )
        return result

    try:
        found = replayed(None)
        allocated, reserved = found.peak_allocated_bytes, found.peak_reserved_bytes
        fits, least, within = True, None, None
        if room is not None and reserved > room:
            tried = replayed(room) if allocated <= room else None
            fits = tried is not None and tried.fits_at_any_pace is True
            if tried is not None and fits:
                within = tried.peak_reserved_bytes
            elif name == "elastic":
                bounds = max(allocated, room), reserved
                least = least_memory(bounds, lambda memory: replayed(memory).fits)
    except InputError:
        return
    yield AllocatorUse(name, conf, allocated, reserved, fits, least, within)
