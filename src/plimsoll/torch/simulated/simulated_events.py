"""Passes the events of simulated GPUs to a recorder, in a process that uses PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.engine.gpus.recorded_card import card_entry
from plimsoll.engine.snapshot import segments_now, settings_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core
    from plimsoll.engine.recorder.event_source import Segments
    from plimsoll.recordings.events import Frame
    from plimsoll.torch.simulated.simulation import Simulation


class SimulatedEvents:
    """An `EventSource`: the simulated GPUs of this process."""

    is_simulated = True

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stacks = simulation.site_stacks()

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """See `EventSource.start`."""
        self._simulation.record_events(buffer, stacks=stacks)

    def stop(self) -> None:
        """See `EventSource.stop`."""
        self._simulation.record_events(None, stacks=False)

    def segments(self) -> Segments:
        """See `EventSource.segments`."""
        return {
            device: segments_now(allocator.engine)
            for device, allocator in enumerate(self._simulation.allocators)
        }

    def settings(self) -> Mapping[str, Any]:
        """See `EventSource.settings`."""
        allocator = self._simulation.allocators[0]
        settings = settings_dict(
            allocator.conf, allocator.config, allocator.name, allocator.version
        )
        cards = enumerate(self._simulation.profiles)
        return settings | {
            "gpus": [card_entry(device, card.name, card.total_bytes) for device, card in cards]
        }

    def limits(self) -> dict[int, int | None]:
        """See `EventSource.limits`."""
        allocators = enumerate(self._simulation.allocators)
        return {device: allocator.limit_bytes for device, allocator in allocators}

    def frames(self, stack: int) -> list[Frame]:
        """See `EventSource.frames`; `stack` is the number of a request's call site."""
        return self._stacks[stack]

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """See `EventSource.when_torch_is_there`."""
        self._simulation.after_import(action)
