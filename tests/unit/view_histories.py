"""Makes small allocation histories for tests, and counts the live memory after each event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.recording import LoadedTrace, Mark, Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.recordings.events import Frame

Row = tuple[int, int, int, int, int, int]
"""An event: action, address, size, stream, number of the stack, bytes in shared memory."""

KiB, MiB = 1 << 10, 1 << 20
BASE = 0x7F00_0000_0000


class MadeUpTrace(LoadedTrace):
    """A history that was never in a file. The test gives the frames of its stacks."""

    stacks: dict[int, list[Frame]]

    def frames(self, stack: int) -> list[Frame]:
        return self.stacks.get(stack, [])


def recording_of(
    rows: Sequence[Row],
    *,
    stacks: dict[int, list[Frame]] | None = None,
    marks: Sequence[Mark] = (),
    name: str = "made up.pickle",
    conf: str = "",
    devices: int = 1,
) -> Recording:
    """Returns a recording in which every device has these events, three microseconds apart."""
    action, address, size, stream, stack, shared = np.array(rows, dtype=np.uint64).T
    zeros = np.zeros(len(rows), dtype=np.uint64)
    batch = EventBatch.of(
        {
            "action": action, "address": address, "size": size, "stream": stream, "stack": stack,
            "shared": shared, "time_us": 1_000_000 + 3 * np.arange(len(rows)),
            "pool_first": zeros, "pool_second": zeros,
        }
    )  # fmt: skip
    traces = []
    for device in range(devices):
        trace = MadeUpTrace(device, batch, [])
        trace.stacks = stacks or {}
        traces.append(trace)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    return Recording(name, list(traces), settings, list(marks))


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Draws a random program: allocations and frees in one segment, on two streams."""
    rows: list[Row] = [(Action.SEGMENT_ALLOC, BASE, 64 * MiB, 0, 0, 0)]
    live: list[Row] = []
    waiting: list[Row] = []
    place = BASE
    for _ in range(draw(st.integers(1, 60))):
        choice = draw(st.integers(0, 5))
        if choice <= 2 or not (live or waiting):
            size = draw(st.sampled_from([8, 512, 3 * KiB, 70 * KiB, 2 * MiB]))
            shared = draw(st.sampled_from([0, 0, size // 2]))
            stream, stack = draw(st.integers(0, 1)), draw(st.integers(0, 3))
            row: Row = (Action.ALLOC, place, size, stream, stack, shared)
            place += -(-size // 512) * 512
            rows.append(row)
            live.append(row)
        elif choice <= 4 and live:
            row = live.pop(draw(st.integers(0, len(live) - 1)))
            rows.append((Action.FREE_REQUESTED, *row[1:]))
            waiting.append(row)
        elif waiting:
            row = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            rows.append((Action.FREE_COMPLETED, *row[1:]))
    return rows


@dataclass
class Held:
    """A block that the program has not freed (`live`), or that other streams still use."""

    row: Row
    live: bool


def held_after_each(rows: Sequence[Row]) -> list[dict[int, Held]]:
    """Returns for each event the blocks that are held after the event, by their addresses."""
    now: dict[int, Held] = {}
    states = []
    for row in rows:
        action, address = row[0], row[1]
        if action == Action.ALLOC:
            now[address] = Held(row, live=True)
        elif action == Action.FREE_REQUESTED:
            now[address] = Held(now[address].row, live=False)
        elif action == Action.FREE_COMPLETED:
            del now[address]
        states.append(dict(now))
    return states


def live_bytes(states: Sequence[dict[int, Held]]) -> list[int]:
    """Returns the live bytes in each state."""
    return [sum(held.row[2] for held in state.values() if held.live) for state in states]


STACKS: dict[int, list[Frame]] = {
    1: [("/home/me/model.py", 10, "forward"), ("/home/me/train.py", 90, "main")],
    2: [("/x/site-packages/torch/optim/adamw.py", 200, "step"), ("/home/me/train.py", 95, "main")],
    3: [("/home/me/model.py", 20, "forward"), ("/home/me/train.py", 90, "main")],
}
