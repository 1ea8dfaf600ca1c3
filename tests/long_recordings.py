"""Writes streaming recordings of any length fast, by repeating one step of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.stream_writer import StreamWriter

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.recordings.events import Frame

_BLOCKS = 1500
_EVENTS = 3 * _BLOCKS


def write_long(path: Path, events: int, *, marks: bool) -> None:
    """Writes a recording of whole steps, each of `_EVENTS` events.

    Args:
        path: The path of the file.
        events: The least number of events. It is rounded up to whole steps.
        marks: Whether the program marks the ends of its steps.
    """
    random = np.random.default_rng(1)
    writer = StreamWriter(path, _frames)
    none = np.zeros(_EVENTS, dtype=np.uint64)
    # A step allocates all blocks, then frees them in the reverse order.
    place = np.arange(_BLOCKS)
    block = np.concatenate([place, np.repeat(place[::-1], 2)])
    frees = np.tile([Action.FREE_REQUESTED, Action.FREE_COMPLETED], _BLOCKS)
    action = np.concatenate([np.full(_BLOCKS, Action.ALLOC), frees])
    devices = np.zeros(_EVENTS, dtype=np.int32)
    for step in range(-(-events // _EVENTS)):
        size = 512 * random.integers(1, 1000, _BLOCKS)
        time = 1_700_000_000_000_000 + step * 10 * _EVENTS + 10 * np.arange(_EVENTS)
        batch = EventBatch.of(
            {
                "action": action, "address": (1 << 40) + (block << 20), "size": size[block],
                "stack": np.where(action == Action.ALLOC, 1 + block % 100, 0), "stream": none,
                "time_us": time, "pool_first": none, "pool_second": none,
            }
        )  # fmt: skip
        ends = [(_EVENTS, int(time[-1]), "step")] if marks else []
        writer.write(devices, batch, marks=ends, start={0: []} if step == 0 else None)
    writer.write(devices[:0], batch[:0], end={0: []}, ended=True)
    writer.close()


def _frames(stack: int) -> list[Frame]:
    return [("/home/me/train.py", stack, "step")] if stack else []
