"""The interface of a source of events.

Between `start` and `stop`, a source puts its events into a buffer. Other threads may allocate while
`segments` runs. So `segments` puts a `snapshot` event into the buffer. The segments that it returns
are those at the moment of this event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.recordings.events import Frame

Segments = dict[int, list[_core.SegmentInfo]]
"""The segments of each device, in the order of their addresses."""


class EventSource(Protocol):
    """A source of events: an allocator of GPU memory."""

    is_simulated: bool
    """Whether the events' times are those of a simulated clock."""

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """Starts to put every event into `buffer`.

        Raises:
            InputError: If the source cannot be recorded.
        """

    def stop(self) -> None:
        """Stops putting events into the buffer."""

    def segments(self) -> Segments:
        """Returns all segments, and puts a `snapshot` event into the buffer at the same moment."""

    def settings(self) -> Mapping[str, Any]:
        """Returns the value that PyTorch's memory snapshots have under `allocator_settings`.

        Two keys are added: "allocator" has the allocator's name, and "gpus" has a list with the
        `card_entry` of each card whose name is known.
        """

    def limits(self) -> dict[int, int | None]:
        """Returns the most bytes that the process may reserve now, by device.

        The limit is that of `set_per_process_memory_fraction`; None if there is none.
        """

    def frames(self, stack: int) -> list[Frame]:
        """Returns the call stack that events refer to by this number, innermost frame first."""

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """Calls `action` as soon as PyTorch is imported.

        A source without PyTorch never calls it.
        """
