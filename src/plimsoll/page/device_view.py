"""One device's history as tables for the page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.engine.gpus.recorded_card import recorded_card
from plimsoll.page import marks
from plimsoll.page.columns import MOST
from plimsoll.page.keys import (
    Key,
    key_of_categories,
    key_of_numbers,
    key_of_sizes,
    key_of_tiers,
    pool_names,
    stream_names,
    weights_at_peak,
)
from plimsoll.page.overview import Overview, bytes_by_group, make_overview
from plimsoll.page.stacks import StackTable, make_stack_table
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.categories import find_categories
from plimsoll.recordings.analysis.category_names import CATEGORIES
from plimsoll.recordings.analysis.rounding import rounded_sizes
from plimsoll.recordings.analysis.segments import SegmentLifetimes, find_segments
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.events import Action, EventBatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.recording import DeviceTrace, Recording


@dataclass(frozen=True)
class DeviceView:
    """One device's history.

    Attributes:
        device: The device's number.
        event_count: The number of events.
        begin_us: The time of the first event, in microseconds since the epoch.
        time_us: The microseconds from the first event to each event; they never decrease. int64.
        allocator: The allocator, as in `Recording.allocator`.
        max_split_size: The size in bytes from which PyTorch's blocks are never split; None for no
            limit.
        lifetimes: The device's blocks; their `stack` is an index into `stacks`, and their `stream`
            into `streams`.
        rounded: The bytes that each block takes of its segment: its size, rounded by the
            allocator's rule. uint64.
        freed_by: For each block, the index of the call stack of its free. int64.
        level: Live bytes after each event. int64.
        streams: The handles of the CUDA streams.
        stacks: The call stacks.
        category: For each block, the index of its category in `CATEGORIES`. uint8.
        keys: The ways to group blocks.
        segments: The reserved segments.
        moments: The marks of the timeline, in order.
        notes: Sentences about the history, which the page shows.
    """

    device: int
    event_count: int
    begin_us: int
    time_us: NDArray[np.int64]
    allocator: str
    max_split_size: int | None
    lifetimes: Lifetimes
    rounded: NDArray[np.uint64]
    freed_by: NDArray[np.int64]
    level: NDArray[np.int64]
    streams: Sequence[int]
    stacks: StackTable
    category: NDArray[np.uint8]
    keys: Sequence[Key]
    segments: SegmentLifetimes
    moments: Sequence[marks.Moment]
    notes: Sequence[str]

    @property
    def origin(self) -> int:
        """The lowest address of a block or segment.

        A page stores addresses relative to it, since JavaScript's numbers are exact only to 2**53.
        """
        starts = np.concatenate([self.lifetimes.address, self.segments.address])
        return int(starts.min(initial=2**64 - 1)) if len(starts) else 0

    def overview(self) -> Overview:
        """Returns the history divided into spans of events."""
        return make_overview(self.lifetimes, self.level, self.time_us)

    def numbers_for(self, key: Key) -> NDArray[Any]:
        """Returns for each block the number that decides its group, such as its stream's number."""
        lifetimes = self.lifetimes
        columns: dict[str, NDArray[Any]] = {
            "category": self.category,
            "line": lifetimes.stack,
            "stream": lifetimes.stream.astype(np.int64),
            "pool": lifetimes.pool,
            "size": lifetimes.size,
        }
        return columns[key.by]

    def bytes_by_group(self, key: Key, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the live bytes of each group after each of `events`, which are sorted.

        The shape is [events, groups].
        """
        lifetimes = self.lifetimes
        if key.by == "tier":
            everything = np.zeros(len(lifetimes), dtype=np.int64)
            parts = (lifetimes.size - lifetimes.shared, lifetimes.shared)
            columns = [bytes_by_group(lifetimes, everything, part, 1, events) for part in parts]
            return np.concatenate(columns, axis=1)
        groups = key.groups_of(self.numbers_for(key))
        return bytes_by_group(lifetimes, groups, lifetimes.size, len(key.groups), events)


_ALIGNMENT = np.uint64(512)
"""plimsoll's own allocators round a block's size to a multiple of this."""

_CATEGORY_NOTES = {
    "program": "The running program said what its tensors are.",
    "stacks": "Categories are told by call stacks.",
    "lifetimes": "Without call stacks, categories are told by lifetimes: read them as likely.",
    "nothing": "There are neither call stacks nor steps to tell categories by.",
}


def make_device_view(recording: Recording, trace: DeviceTrace) -> DeviceView:
    """Prepares one device's history for the page.

    Raises:
        InputError: If the history has nothing to show.
    """
    rare, numbers, time_us, asked_by = _pass_through(trace)
    lifetimes = find_lifetimes(trace)
    _check(recording, lifetimes.size, rare.size)
    # A damaged history may claim more bytes in shared memory than the block has.
    lifetimes = replace(lifetimes, shared=np.minimum(lifetimes.shared, lifetimes.size))
    segments, notes = find_segments(rare, numbers, trace, recording.conf)
    steps = find_steps(lifetimes, recording.marks, device=trace.device)
    failures = numbers[rare.action == Action.OOM].tolist()
    categories = find_categories(lifetimes, steps, trace.frames, failures)
    card = recorded_card(recording.settings, trace.device)
    if card is not None:
        size = format_size(card.total_bytes)
        notes.append(f"Recorded on {printable(card.name)}, which has {size}.")
    notes += [f"{problem[:1].upper()}{problem[1:]}." for problem in recording.problems]
    notes += [_CATEGORY_NOTES[categories.source], _about_steps(steps)]
    streams = np.union1d(lifetimes.stream, segments.stream)
    numbers_of_streams = np.searchsorted(streams, segments.stream)
    segments = replace(segments, stream=numbers_of_streams.astype(np.uint64))
    freed_by = np.zeros(len(lifetimes), dtype=np.uint32)
    freed = np.flatnonzero((lifetimes.end >= 0) & (lifetimes.end < trace.event_count))
    freed_by[freed] = asked_by[lifetimes.end[freed]]
    used = np.unique(np.concatenate([lifetimes.stack, freed_by, asked_by[failures], [0]]))
    stacks = make_stack_table(trace.frames(number) for number in used.tolist())
    lifetimes = replace(
        lifetimes,
        stack=np.searchsorted(used, lifetimes.stack).astype(np.uint32),
        stream=np.searchsorted(streams, lifetimes.stream).astype(np.uint64),
    )
    level = lifetimes.level()
    config = None  # only PyTorch's allocator has a configuration
    if recording.allocator == "native":
        config = _core.AllocatorConfig.parse(recording.conf, recording.version)
    reserved_before = int(segments.size[segments.start < 0].sum())
    failed_stacks = np.searchsorted(used, asked_by[failures]).tolist()
    moments = marks.find_failures(rare, numbers, failed_stacks)
    moments += marks.find_releases(
        rare, numbers, reserved_before, collects="garbage_collection" in recording.conf
    )
    moments += marks.step_moments(steps, trace.event_count)
    moments += marks.named_marks(recording.marks, trace.device, trace.event_count)
    return DeviceView(
        device=trace.device,
        event_count=trace.event_count,
        begin_us=int(time_us[0]),
        time_us=np.maximum.accumulate(time_us - time_us[0]),
        allocator=recording.allocator,
        max_split_size=config.max_split_size if config else None,
        lifetimes=lifetimes,
        rounded=_rounded(config, lifetimes.size),
        freed_by=np.searchsorted(used, freed_by),
        level=level,
        streams=streams.tolist(),
        stacks=stacks,
        category=categories.number,
        keys=_keys(lifetimes, level, streams.tolist(), stacks, categories.number),
        segments=segments,
        moments=sorted(moments, key=lambda moment: moment.event),
        notes=notes,
    )


def _pass_through(
    trace: DeviceTrace,
) -> tuple[EventBatch, NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
    """Reads the history once.

    Returns:
        Four values: the events of segments and failures, the index of each of these events in the
        history, the time of every event, and the stack of every event.
    """
    times, rare, numbers, stacks = [], [], [], []
    passed = 0
    for batch in trace.batches():
        rows = np.flatnonzero(batch.action >= Action.SEGMENT_ALLOC)
        times.append(batch.time_us)
        stacks.append(batch.stack)
        rare.append(batch[rows])
        numbers.append(rows + passed)
        passed += len(batch)
    return (
        EventBatch.join(rare), np.concatenate(numbers), np.concatenate(times),
        np.concatenate(stacks),
    )  # fmt: skip


def _rounded(config: _core.AllocatorConfig | None, sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if config is not None:
        return rounded_sizes(sizes, config.round_request)
    return (sizes + _ALIGNMENT - np.uint64(1)) // _ALIGNMENT * _ALIGNMENT


def _about_steps(steps: Steps) -> str:
    if not len(steps):
        return "No steps were found."
    if steps.source == "marks":
        return f"{format_count(len(steps), 'step')}, as the program marked them."
    return (
        f"{format_count(len(steps), 'step')}, found by the rhythm of allocations "
        f"(confidence {steps.confidence:.0%})."
    )


def _check(recording: Recording, *sizes: NDArray[np.uint64]) -> None:
    for column in sizes:
        if column.max(initial=0) >= MOST or column.astype(np.float64).sum() >= 2.0**62:
            raise InputError(f"{recording.name}: it has sizes beyond any machine's memory")


def _keys(
    lifetimes: Lifetimes,
    level: NDArray[np.int64],
    streams: Sequence[int],
    stacks: StackTable,
    category: NDArray[np.uint8],
) -> list[Key]:
    weights = weights_at_peak(lifetimes, level)
    by_line = key_of_numbers(
        "line", "Source line", stacks.lines, stacks.stack_line[lifetimes.stack], weights
    )
    # The page knows each block's stack. A stack has one line, and so belongs to one group.
    table = [by_line.table[line] for line in stacks.stack_line.tolist()]
    keys = [
        key_of_categories(CATEGORIES, category),
        Key("line", by_line.title, by_line.groups, "line", table),
        key_of_numbers(
            "stream", "Stream", stream_names(streams), lifetimes.stream.astype(np.int64), weights
        ),
        key_of_sizes(),
    ]
    if len(lifetimes.pools) > 1:
        names = pool_names(lifetimes.pools)
        keys.append(key_of_numbers("pool", "Pool", names, lifetimes.pool, weights))
    if lifetimes.shared.any():
        keys.append(key_of_tiers())
    return keys
