"""From the events of a running program to a file: what can be recorded, and what writes it."""

from plimsoll.recorder.event_source import EventSource
from plimsoll.recorder.recorder import Recorder

__all__ = ["EventSource", "Recorder"]
