"""Summarizes a rank's recording as plain data, to compare it with other ranks and draw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.recorded_card import recorded_card
from plimsoll.engine.replays.replay import replay
from plimsoll.explanation.ranks import passing
from plimsoll.explanation.ranks.behaviour import Behaviour, BehaviourInTheMaking
from plimsoll.explanation.ranks.growth import Kept, find_kept, kept_moment
from plimsoll.recordings.analysis.block_history import BlockHistory
from plimsoll.recordings.analysis.leaks import LEAST_STEPS, find_leaks, leak_moments
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.recording import DeviceTrace, Recording

_MOST_LINES = 50


@dataclass(frozen=True)
class RankSummary:
    """The summary of one rank.

    Attributes:
        file: The recording.
        rank: The rank according to the recording; None if the recording has none.
        host: The name of its machine, if recorded.
        world_size: The number of ranks in its job, if recorded.
        device: The device; the one with the most memory in use if there are several.
        events: The number of events.
        steps: The number of steps found.
        steps_source: The source of the steps, "marks" or "rhythm".
        peak_allocated_bytes: The most requested bytes that were live at once.
        kept_bytes: The bytes that stay live throughout a step, as the median over the steps; None
            without steps.
        peak_reserved_bytes: The most reserved bytes.
        lost_bytes: `peak_reserved_bytes` minus the most allocated bytes.
        card_bytes: The memory of the card, if the recording names it.
        failure: The first request that failed.
        lines: The bytes of source lines at the peak of allocated memory, most first.
        leaks: Lines whose memory grows over many steps.
        kept: The memory that lines allocate in steps and never free.
        allocations_per_step: The median number of allocations in a step; None without steps.
        behaviour: The order of its allocations.
        names: The name of each source line. `Passages.line` in `behaviour` is an index into this
            list.
        timeline: Allocated memory over time.
        problems: The gaps in the history, a sentence each.
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
    failure: passing.Failure | None
    lines: list[tuple[str, int]]
    leaks: list[Leak]
    kept: list[Kept]
    allocations_per_step: float | None
    behaviour: Behaviour
    names: list[str]
    timeline: passing.Timeline
    problems: list[str]


def summarize(path: Path, *, memory: int | str | None = None) -> RankSummary:
    """Reads one recording and returns the figures that a comparison of ranks needs.

    A trace is read one stretch at a time, so its length does not change the memory needed. A
    snapshot of PyTorch is held in memory as a whole.

    Args:
        path: A snapshot or a trace.
        memory: The memory for reading, as for `read_recording`.

    Raises:
        InputError: If the recording cannot be read, or has no history.
    """
    recording = read_recording(path, memory=memory, goes_by=True)
    trace, history = _busiest(recording)
    if not history.event_count:
        raise InputError(f"{path}: nothing is allocated in it")
    steps = find_steps(history, recording.marks, device=trace.device)
    moments = leak_moments(steps)[1].tolist() if len(steps) >= LEAST_STEPS else []
    moments += [kept_moment(steps)] if len(steps) else []
    peak, lasting = passing.Peak(), passing.LivingBlocks(np.array(moments, dtype=np.int64))
    in_steps = passing.InSteps(steps, history.event_count)
    lines, behaviour = passing.Lines(trace), BehaviourInTheMaking(trace.frames)
    reserved = passing.Reserved(trace, steps)
    timeline = passing.TimelineInTheMaking(history.begin_us, history.end_us, history.event_count)
    for stretch, events in history.with_events():
        for one in (peak, lasting, in_steps, lines, behaviour):
            one.add(stretch)
        for other in (reserved, timeline):
            other.add(stretch, events)
    table = lines.table()
    kept = lasting.blocks
    peak_reserved, lost = _reserved(recording, reserved.most_bytes, peak.bytes)
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
        peak_allocated_bytes=peak.bytes,
        kept_bytes=in_steps.kept_bytes,
        peak_reserved_bytes=peak_reserved,
        lost_bytes=lost,
        card_bytes=card.total_bytes if card else None,
        failure=reserved.failure,
        lines=_held(peak.blocks, table),
        leaks=find_leaks(kept, steps, table.of(kept), table.names),
        kept=find_kept(kept, steps, table.of(kept), table.names),
        allocations_per_step=in_steps.allocations,
        behaviour=behaviour.made(table.of),
        names=table.names,
        timeline=timeline.timeline,
        problems=recording.problems,
    )


def _busiest(recording: Recording) -> tuple[DeviceTrace, BlockHistory]:
    """Returns the device with the most memory in use, and its blocks."""
    histories = [(trace, BlockHistory(trace)) for trace in recording.devices]
    if len(histories) == 1:
        return histories[0]
    return max(histories, key=lambda one: max(int(part.level.max()) for part in one[1]))


def _reserved(recording: Recording, most: int | None, allocated: int) -> tuple[int, int]:
    """Returns the most reserved bytes, and their excess over the most allocated bytes."""
    if most is None:  # no segments are recorded, so replay the allocations to find the peak
        try:
            result = max(replay(recording), key=lambda one: one.peak_reserved_bytes)
        except InputError:
            return allocated, 0
        return result.peak_reserved_bytes, result.peak_reserved_bytes - allocated
    return most, max(most - allocated, 0)


def _held(blocks: Lifetimes, table: passing.LineTable) -> list[tuple[str, int]]:
    """Returns each line with the bytes of its blocks, largest first."""
    held = np.bincount(table.of(blocks), blocks.size.astype(np.float64), len(table.names))
    top = np.argsort(-held, kind="stable")[:_MOST_LINES]
    return [(table.names[one], int(held[one])) for one in top.tolist() if held[one]]
