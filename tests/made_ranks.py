"""Makes recordings of many ranks from one real recording; ranks differ in sizes, clocks and faults.

The real history is split in two: memory that lasts over all steps, and one step, which is repeated.
Sizes are changed, and an allocator on a simulated GPU serves the requests, so addresses, segments
and failures follow PyTorch's rules. A faulty rank differs from healthy ones only by its fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from plimsoll import Allocator, SimulatedGpu, _core
from plimsoll.engine.snapshot import segments_now
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.events import EventBatch
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.stream_writer import StreamWriter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from plimsoll.recordings.events import Frame

Fault = Literal["out_of_memory", "leak", "fragmented", "full", "different"]
FAULTS: tuple[Fault, ...] = ("out_of_memory", "leak", "fragmented", "full", "different")
CARD_BYTES = 80 << 30
_START_US = 1_700_000_000_000_000
_CAPACITY = 1 << 18
_LARGE = 1 << 20
# The length of each step's data is a multiple of 1/16 of the recorded length. This imitates a
# program that pads its batches.
_PADDED = 16


@dataclass(frozen=True)
class Operation:
    """A request or a free of one block.

    `carried` is true for a free if the block was requested before the current step.
    """

    is_request: bool
    slot: int
    size: int = 0
    stack: int = 0
    carried: bool = False


@dataclass(frozen=True)
class Program:
    """The requests and frees of a recorded program: `once` runs first, then `step` repeatedly."""

    once: list[Operation]
    step: list[Operation]
    frames: dict[int, list[Frame]]


@dataclass(frozen=True)
class Rank:
    """How one rank differs from the recorded program.

    Attributes:
        events: The approximate number of events in the rank's history.
        shard: The factor on the recorded sizes of parameters, gradients and optimizer states.
        stage: The rank's pipeline stage, less than `stages`. Each stage leaves out its own part of
            a step.
        lengths: The least length of a step's data, as a fraction of the recorded length. Each
            step draws its length between this fraction and 1.0.
        seed: The seed of all randomness.
        fault: What is wrong with the rank; None if the rank is healthy.
    """

    events: int
    shard: float = 1.0
    stage: int = 0
    stages: int = 1
    lengths: float = 1.0
    seed: int = 0
    fault: Fault | None = None


@dataclass(frozen=True)
class History:
    """The history of a rank's memory."""

    events: EventBatch
    segments: list[_core.SegmentInfo]
    step_rows: list[int]
    program: Program


@cache
def program_of(path: Path) -> Program:
    """Makes a program from a recording. The program repeats the third step of the recording."""
    recording = read_recording(path)
    (trace,) = recording.devices
    lifetimes = find_lifetimes(trace)
    bounds = find_steps(lifetimes, recording.marks).boundaries.tolist()
    first, last = bounds[2], bounds[3]

    def between(begin: int, end: int) -> list[Operation]:
        rows = [
            (int(event), Operation(True, slot, int(size), int(stack)))
            for slot, (event, size, stack) in enumerate(
                zip(lifetimes.start, lifetimes.size, lifetimes.stack, strict=True)
            )
            if begin <= event < end
        ]
        rows += [
            (int(event), Operation(False, slot, carried=int(lifetimes.start[slot]) < begin))
            for slot, event in enumerate(lifetimes.end)
            if begin <= event < end
        ]
        return [operation for _, operation in sorted(rows, key=lambda row: row[0])]

    # Some memory that the first step requests lasts to the end, such as an optimizer's state. The
    # program that is made here requests this memory before its steps.
    stays = np.flatnonzero((lifetimes.start < bounds[1]) & (lifetimes.end >= bounds[-2]))
    once = [
        Operation(True, slot, int(lifetimes.size[slot]), int(lifetimes.stack[slot]))
        for slot in stays.tolist()
    ]
    step = between(first, last)
    freed = {one.slot for one in step if not one.is_request}
    left = [one for one in step if one.is_request and one.slot not in freed]
    step = [one for one in step if not one.carried]
    # In the recording, a later step frees some memory that this step requests. The program that is
    # made here frees this memory at the end of the step.
    step += [Operation(False, one.slot) for one in left]
    stacks = {one.stack for one in (*once, *step)}
    return Program(once, step, {stack: trace.frames(stack) for stack in stacks})


def history_of(program: Program, rank: Rank) -> History:
    """Lets an allocator serve a rank's requests. Returns the history."""
    return _Run(program, rank).history()


class _Run:
    def __init__(self, program: Program, rank: Rank) -> None:
        self._program, self._rank = program, rank
        self._random = np.random.default_rng(rank.seed)
        self._gpu = SimulatedGpu(CARD_BYTES)
        self._allocator = Allocator(self._gpu)
        self._engine = self._allocator.engine
        self._live: dict[tuple[int, int], int] = {}
        self._count = 0
        self._is_over = False

    def history(self) -> History:
        rank, program = self._rank, self._program
        buffer = _buffer()
        buffer.drain()
        self._engine.record(buffer)
        self._weights = {one.size for one in program.once}
        self._do(program.once, -1, 1.0)
        step = _of_stage(program.step, rank)
        rows = []
        steps = max(round((rank.events - self._count) / (1.5 * len(step))), 5)
        chosen = int(self._random.integers(steps // 3, max(2 * steps // 3, steps // 3 + 1)))
        leaking = int(self._random.integers(len(step)))
        kept_bytes = int(self._random.integers(1, 16)) << 16
        for number in range(steps):
            rows.append(self._count)
            length = self._random.integers(round(rank.lengths * _PADDED), _PADDED + 1) / _PADDED
            batch = 2.0 if rank.fault == "full" else 1.0
            if rank.fault == "leak" and number > 0:
                operation = next(one for one in [*step[leaking:], *step] if one.is_request)
                self._request((-2, number), kept_bytes, operation.stack)
            of_step = step
            if rank.fault == "different" and number == chosen:
                of_step = _swapped(step)
            if rank.fault == "out_of_memory" and number == chosen:
                live, reserved = (
                    self._allocator.memory_allocated(),
                    self._allocator.memory_reserved(),
                )
                self._allocator.empty_cache()
                self._engine.limit = live + (reserved - live) // 4
            self._do(of_step, number, length * batch)
            if self._is_over:
                break
        self._engine.record(None)
        assert buffer.dropped == 0
        _, *columns = buffer.drain()
        return History(EventBatch(*columns), segments_now(self._engine), rows[1:], program)

    def _do(self, operations: list[Operation], step: int, length: float) -> None:
        waiting = set()
        is_fragmenting = self._rank.fault == "fragmented" and step > 0
        for one in operations:
            key = (step, one.slot)
            if not one.is_request:
                if key in self._live:
                    self._engine.free(self._live.pop(key))
                    self._count += 2
                else:
                    waiting.add(key)
                continue
            # A tensor of exactly a weight's size is taken for a weight or a gradient, so it scales
            # with the rank's shard. Other tensors scale with the length of the step's data.
            scale = self._rank.shard if one.size in self._weights else length
            if is_fragmenting and one.size > _LARGE:
                scale *= float(self._random.uniform(0.6, 1.4))
            self._request(key, max(int(one.size * scale), 1), one.stack)
            if self._is_over:
                return
        for key in waiting & set(self._live):
            self._engine.free(self._live.pop(key))
            self._count += 2

    def _request(self, key: tuple[int, int], size: int, stack: int) -> None:
        self._engine.set_context(stack)
        try:
            self._live[key] = self._engine.allocate(size, 0)
        except _core.OutOfMemory:
            self._is_over = True
        self._count += 1


@cache
def _buffer() -> _core.EventBuffer:
    return _core.EventBuffer.make(_CAPACITY)


def _of_stage(step: list[Operation], rank: Rank) -> list[Operation]:
    """Returns a step without the requests that the rank's pipeline stage leaves out."""
    if rank.stages == 1:
        return step
    requests = [one.slot for one in step if one.is_request]
    width = len(requests) // (2 * rank.stages)
    left_out = set(requests[rank.stage * width : (rank.stage + 1) * width])
    left_out |= set(requests[: (width // 4) * rank.stage])
    return [one for one in step if one.slot not in left_out]


def _swapped(step: list[Operation]) -> list[Operation]:
    """Puts a step's second half before its first."""
    half = len(step) // 2
    return [*step[half:], *step[:half]]


def write_rank(
    path: Path,
    history: History,
    *,
    rank: int | None,
    world_size: int = 1,
    seed: int = 0,
    marks: bool = False,
) -> None:
    """Writes a rank's recording; `seed` decides the times of the events."""
    count = len(history.events)
    random = np.random.default_rng(seed)
    time = _START_US + int(random.integers(2_000)) + np.cumsum(random.integers(2, 30, count))
    events = replace(history.events, time_us=time.astype(np.int64))
    place = None
    if rank is not None:
        place = {
            "rank": rank, "local_rank": rank % 8, "world_size": world_size,
            "host": f"node{rank // 8}",
        }  # fmt: skip
    settings = {"allocator": "native", "torch_version": "2.13.0"}
    gpus = [{"device": 0, "name": "NVIDIA H100 80GB HBM3", "total_bytes": CARD_BYTES}]
    writer = StreamWriter(
        path,
        lambda stack: history.program.frames.get(stack, []),
        {**settings, "gpus": gpus, **({"process": place} if place else {})},
    )
    devices: NDArray[np.int32] = np.zeros(count, dtype=np.int32)
    rows = [
        (row, int(time[min(row, count - 1)]), "step") for row in history.step_rows if row < count
    ]
    writer.write(
        devices, events, marks=rows if marks else [], start={0: []}, end={0: history.segments},
        ended=True,
    )  # fmt: skip
    writer.close()
