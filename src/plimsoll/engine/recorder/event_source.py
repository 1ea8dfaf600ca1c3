"""What can be recorded.

A source puts events into a buffer from `start` to `stop`. Its `segments` also puts a `snapshot`
event there, at the very moment that they are of: so what happened before can be told apart from
what happened after, while other threads go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.recordings.events import Frame

Segments = dict[int, list[_core.SegmentInfo]]
"""Of each device, by address."""


class EventSource(Protocol):
    """Something that allocates GPU memory."""

    is_simulated: bool
    """Whether the events' times are those of a simulated clock."""

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """Put every event from now on into `buffer`.

        Raises:
            InputError: If that is not possible.
        """

    def stop(self) -> None:
        """No event from now on."""

    def segments(self) -> Segments:
        """All memory, and an event in the buffer that says when."""

    def settings(self) -> Mapping[str, Any]:
        """The `allocator_settings` of PyTorch's snapshots, and "allocator", the allocator's name.

        Under "gpus" are the cards that have names, in the form that `recorded_card` reads.
        """

    def frames(self, stack: int) -> list[Frame]:
        """The call stack of an event, by its number."""

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """Call `action` once PyTorch, whose memory this is, is imported; never, if it is none's."""
