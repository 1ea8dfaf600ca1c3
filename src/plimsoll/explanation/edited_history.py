"""Makes recordings from requests alone, so that edited requests can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.recordings.events import Action
from plimsoll.recordings.recording import LoadedTrace, Recording

if TYPE_CHECKING:
    from plimsoll.recordings.events import EventBatch


def requests_alone(recording: Recording, events: EventBatch, name: str) -> Recording:
    """Makes a recording from the program's requests among the given events.

    The allocator's own events, about segments, are left out.
    """
    (trace,) = recording.devices
    is_request = (events.action <= Action.FREE_COMPLETED) | (events.action == Action.OOM)
    edited = LoadedTrace(trace.device, events[is_request], [])
    return Recording(f"{recording.name}, {name}", [edited], recording.settings)
