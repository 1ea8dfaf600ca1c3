"""Computes what PyTorch's allocator would have reserved in a run that used another allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.engine.replays.replay import replay
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.recording import LoadedTrace, Recording
from plimsoll.torch.simulated.memory_limits import without_limit

if TYPE_CHECKING:
    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.torch.simulated.simulation import Simulation

_CAPACITY = 1 << 21
_REQUESTS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


class NativeReplay:
    """Keeps the requests of a run, and replays them by PyTorch's rules at the end of the run.

    The result is None if the replay has not seen every request. This happens if the run has more
    than `_CAPACITY` events. It also happens if the program itself records its memory events,
    because each simulated allocator sends its events to one listener only.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._buffer = _core.EventBuffer.make(_CAPACITY)
        for engine in simulation.opened().values():
            engine.record(self._buffer)
        self._events: tuple[np.ndarray, EventBatch] | None = None

    def of(self, device: int) -> ReplayResult | None:
        """Returns the result for one GPU; None if the replay has not seen every request."""
        if self._events is None:
            devices, *columns = self._buffer.drain()
            self._events = devices.copy(), EventBatch(*(column.copy() for column in columns))
        devices, events = self._events
        requests = events[(devices == device) & np.isin(events.action, _REQUESTS)]
        allocator = self._simulation.allocators[device]
        seen = np.count_nonzero(requests.action == Action.ALLOC)
        if seen != allocator.memory_stats()["allocation.all.allocated"]:
            return None
        profile = self._simulation.profiles[device]
        limit = self._simulation.limits[device][-1]
        try:
            (result,) = replay(
                Recording("the simulated run", [LoadedTrace(device, requests, [])], {}),
                conf=without_limit(allocator.conf),
                gpu_memory=profile.total_bytes - profile.context_bytes,
                limit=None if limit.fraction == 1 else limit.bytes_of(profile.total_bytes),
                version=allocator.version,
            )
        except InputError:
            return None
        return result
