"""Records the events of an `Allocator`, which serves a simulated GPU without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.engine.snapshot import segments_now, settings_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core
    from plimsoll.engine.recorder.event_source import Segments
    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.recordings.events import Frame


class AllocatorEvents:
    """An `EventSource` that puts the events of an `Allocator` into the buffer."""

    is_simulated = True

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """See `EventSource.start`."""
        self._kept_stacks = self._allocator._record_stacks
        self._allocator._record_stacks = stacks or self._kept_stacks
        self._allocator.engine.record(buffer)

    def stop(self) -> None:
        """See `EventSource.stop`."""
        self._allocator.engine.record(None)
        self._allocator._record_stacks = self._kept_stacks
        if not self._kept_stacks:
            self._allocator.engine.set_context(0)

    def segments(self) -> Segments:
        """See `EventSource.segments`."""
        return {self._allocator.device: segments_now(self._allocator.engine)}

    def settings(self) -> Mapping[str, Any]:
        """See `EventSource.settings`."""
        a = self._allocator
        return settings_dict(a.conf, a.config, a.name, a.version)

    def limits(self) -> dict[int, int | None]:
        """See `EventSource.limits`."""
        return {self._allocator.device: self._allocator.limit_bytes}

    def frames(self, stack: int) -> list[Frame]:
        """See `EventSource.frames`."""
        return self._allocator._stacks[stack]

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """See `EventSource.when_torch_is_there`."""
