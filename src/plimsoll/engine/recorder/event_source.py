"""The interface of a source of events.

A source puts events into a buffer from `start` to `stop`. `segments` also puts a `snapshot` event
there at the moment that its result describes, so a reader can tell earlier events from later ones
while other threads continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.recordings.events import Frame

Segments = dict[int, list[_core.SegmentInfo]]
"""The segments of each device, by address."""


class EventSource(Protocol):
    """A source of events: an allocator of GPU memory."""

    is_simulated: bool
    """Whether the events' times are those of a simulated clock."""

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """Put every event from now on into `buffer`.

        Raises:
            InputError: If the source cannot be recorded.
        """

    def stop(self) -> None:
        """Put no further event into the buffer."""

    def segments(self) -> Segments:
        """Returns all memory, and puts a `snapshot` event into the buffer at that moment."""

    def settings(self) -> Mapping[str, Any]:
        """The `allocator_settings` of PyTorch's snapshots, with the allocator's name, "allocator".

        The list under "gpus" has the cards with a name, in the form that `recorded_card` reads.
        """

    def frames(self, stack: int) -> list[Frame]:
        """Returns the call stack of an event, by its number."""

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """Call `action` once PyTorch is imported; never, if the memory is not PyTorch's."""
