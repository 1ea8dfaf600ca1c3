"""One rank's recording as small plain data: what tells it from the others, and what draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.analysis import find_lifetimes, find_steps, source_line, source_lines
from plimsoll.errors import InputError
from plimsoll.explanation.leaks import find_leaks
from plimsoll.gpus import recorded_card
from plimsoll.ranks.behaviour import Behaviour, behaviour_of
from plimsoll.ranks.growth import Kept, find_kept
from plimsoll.recordings import Action, read_recording
from plimsoll.replays import replay
from plimsoll.units import format_size

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from plimsoll.analysis import Lifetimes, Steps
    from plimsoll.explanation.parts import Leak
    from plimsoll.recordings import DeviceTrace, Recording

SPANS = 240
"""Of a rank's time, as the picture of all ranks has it."""
_MOST_LINES = 50
_RESERVES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_RETURNS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True)
class Failure:
    """The first request that found no memory.

    Attributes:
        event: Its number.
        step: How many steps were over; None where no steps are known.
        time_us: Microseconds since the epoch.
        line: What asked, "file:line function"; None where there are no call stacks.
        asked_bytes: How much.
    """

    event: int
    step: int | None
    time_us: int
    line: str | None
    asked_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Allocated bytes in `SPANS` spans of a rank's own time, as long as each other.

    Attributes:
        begin_us: When it begins, microseconds since the epoch.
        end_us: When it ends.
        most_bytes: The most that was live in each span. int64.
    """

    begin_us: int
    end_us: int
    most_bytes: NDArray[np.int64]


@dataclass(frozen=True)
class RankSummary:
    """What there is to know of one rank beside the others.

    Attributes:
        file: The recording.
        rank: As the recording says; None where it does not.
        host: The name of its machine, if the recording says it.
        world_size: How many ranks its job has, if the recording says it.
        device: Which device; of several, the one in use the most.
        events: How many events there are.
        steps: How many steps were found.
        steps_source: Who says so, "marks" or "rhythm".
        peak_allocated_bytes: The most that was asked for and live.
        kept_bytes: What is live also in the calmest moment of a step; None without steps.
        peak_reserved_bytes: The most that was reserved.
        lost_bytes: Of that, what is more than was ever allocated.
        card_bytes: What the card has, if the recording names it.
        failure: The first request that failed.
        lines: What source lines hold at the peak of allocated memory, the most first.
        leaks: Lines that grow by a trend over many steps.
        kept: What lines keep after steps.
        allocations_per_step: The middle of them; None without steps.
        behaviour: What it does.
        names: The source lines by number, as `behaviour` has them.
        timeline: Allocated memory over time.
        problems: What is missing of the history, a sentence each.
    """

    file: str
    rank: int | None
    host: str | None
    world_size: int | None
    device: int
    events: int
    steps: int
    steps_source: str
    peak_allocated_bytes: int
    kept_bytes: int | None
    peak_reserved_bytes: int
    lost_bytes: int
    card_bytes: int | None
    failure: Failure | None
    lines: list[tuple[str, int]]
    leaks: list[Leak]
    kept: list[Kept]
    allocations_per_step: float | None
    behaviour: Behaviour
    names: list[str]
    timeline: Timeline
    problems: list[str]


def summarize(path: Path, *, memory: int | str | None = None) -> RankSummary:
    """Read one recording, and say what tells it from others.

    One device's events are in memory at a time, some 100 bytes for each.

    Args:
        path: A snapshot or a trace.
        memory: What reading may take, as for `read_recording`.

    Raises:
        InputError: If it cannot be read, or holds no history.
    """
    recording = read_recording(path, memory=memory)
    trace, lifetimes = _busiest(recording)
    steps = find_steps(lifetimes, recording.marks, device=trace.device)
    level = lifetimes.level()
    peak = int(level.argmax()) if len(level) else 0
    if not len(level):
        raise InputError(f"{path}: nothing is allocated in it")
    group, names = _lines(trace, lifetimes)
    recorded = lifetimes[lifetimes.start >= 0]
    reserved, failure = _rare_events(trace, steps)
    peak_reserved, lost = _reserved(recording, reserved, level)
    place = recording.process
    card = recorded_card(recording.settings, trace.device)
    return RankSummary(
        file=str(path),
        rank=None if place is None else place.rank,
        host=None if place is None else place.host,
        world_size=None if place is None else place.world_size,
        device=trace.device,
        events=trace.event_count,
        steps=len(steps),
        steps_source=steps.source,
        peak_allocated_bytes=int(level[peak]),
        kept_bytes=_kept_bytes(level, steps),
        peak_reserved_bytes=peak_reserved,
        lost_bytes=lost,
        card_bytes=card.total_bytes if card else None,
        failure=failure,
        lines=_held(lifetimes, peak, group, names),
        leaks=find_leaks(lifetimes, steps, group, names),
        kept=find_kept(lifetimes, steps, group, names),
        allocations_per_step=_allocations_per_step(recorded, steps),
        behaviour=behaviour_of(recorded, group[lifetimes.start >= 0], trace.frames),
        names=names,
        timeline=_timeline(trace, level),
        problems=recording.problems,
    )


def _busiest(recording: Recording) -> tuple[DeviceTrace, Lifetimes]:
    """The device with the most in use, and its blocks; one is in memory beside the best so far."""
    best: tuple[DeviceTrace, Lifetimes] | None = None
    most = -1
    for trace in recording.devices:
        lifetimes = find_lifetimes(trace)
        level = int(lifetimes.level().max(initial=0)) if len(recording.devices) > 1 else 0
        if best is None or level > most:
            best, most = (trace, lifetimes), level
    assert best is not None  # no recording is without a device
    return best


def _lines(trace: DeviceTrace, lifetimes: Lifetimes) -> tuple[NDArray[np.int64], list[str]]:
    """Of each block its line, or without call stacks its size, which stands for one."""
    if lifetimes.stack.any():
        return source_lines(lifetimes.stack, trace.frames)
    sizes, place = np.unique(lifetimes.size, return_inverse=True)
    return place, [f"blocks of {format_size(int(size))}" for size in sizes]


def _rare_events(
    trace: DeviceTrace, steps: Steps
) -> tuple[NDArray[np.int64] | None, Failure | None]:
    """Reserved bytes after each event, None where no event says so; and the first failure."""
    change = np.zeros(trace.event_count, dtype=np.int64)
    failure: Failure | None = None
    passed = 0
    says_so = False
    for batch in trace.batches():
        rare = np.flatnonzero(batch.action >= Action.SEGMENT_ALLOC)
        action, size = batch.action[rare], batch.size[rare].astype(np.int64)
        sign = np.isin(action, _RESERVES).astype(np.int64) - np.isin(action, _RETURNS)
        change[passed + rare] = np.where(sign == 0, 0, sign * size)
        says_so = says_so or bool(sign.any())
        failed = rare[action == Action.OOM]
        if failure is None and len(failed):
            row = int(failed[0])
            stack = int(batch.stack[row])
            step = int(np.searchsorted(steps.boundaries, passed + row, side="right")) - 1
            failure = Failure(
                event=passed + row,
                step=max(step, 0) if len(steps) else None,
                time_us=int(batch.time_us[row]),
                line=source_line(trace.frames(stack)) if stack else None,
                asked_bytes=int(batch.size[row]),
            )
        passed += len(batch)
    reserved = np.cumsum(change)
    if trace.segments:
        final = sum(segment.total_size for segment in trace.segments)
        return reserved + (final - int(reserved[-1])), failure
    if not says_so:
        return None, failure
    return reserved - min(int(reserved.min()), 0), failure


def _reserved(
    recording: Recording, reserved: NDArray[np.int64] | None, level: NDArray[np.int64]
) -> tuple[int, int]:
    """The most that was reserved, and what of it was not allocated at any time: the peak's."""
    if reserved is None:  # nothing says it: what the rules come to
        try:
            result = max(replay(recording), key=lambda one: one.peak_reserved_bytes)
        except InputError:
            return int(level.max()), 0
        return result.peak_reserved_bytes, result.peak_reserved_bytes - int(level.max())
    most = int(reserved.max())
    return most, max(most - int(level.max()), 0)


def _kept_bytes(level: NDArray[np.int64], steps: Steps) -> int | None:
    inner = steps.boundaries[1:-1] if len(steps) > 2 else steps.boundaries[:-1]
    inner = inner[inner < len(level)]
    if not len(steps) or not len(inner):
        return None
    return int(np.median(np.minimum.reduceat(level, inner)))


def _allocations_per_step(recorded: Lifetimes, steps: Steps) -> float | None:
    if len(steps) < 3:
        return None
    counts = np.diff(np.searchsorted(recorded.start, steps.boundaries))
    return float(np.median(counts[1:-1]))


def _held(
    lifetimes: Lifetimes, event: int, group: NDArray[np.int64], names: list[str]
) -> list[tuple[str, int]]:
    live = lifetimes.live_at(event)
    held = np.bincount(group[live], lifetimes.size[live].astype(np.float64), len(names))
    top = np.argsort(-held, kind="stable")[:_MOST_LINES]
    return [(names[one], int(held[one])) for one in top.tolist() if held[one]]


def _timeline(trace: DeviceTrace, level: NDArray[np.int64]) -> Timeline:
    time = np.concatenate([batch.time_us for batch in trace.batches()])
    time = np.maximum.accumulate(time)
    begin, end = int(time[0]), int(time[-1])
    if end <= begin:  # there is no clock: events are as good
        time, begin, end = np.arange(len(time)), 0, len(time) - 1
    edges = begin + (end - begin) * np.arange(SPANS) // SPANS
    first = np.searchsorted(time, edges)
    first[0] = 0
    most = np.maximum.reduceat(level, np.minimum(first, len(level) - 1))
    before = level[np.maximum(first - 1, 0)]  # what lives on from the span before
    quiet = np.append(first[1:], len(level)) <= first
    return Timeline(begin, end, np.where(quiet, before, np.maximum(most, before)))
