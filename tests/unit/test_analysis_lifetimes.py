"""Compares blocks and their lifetimes with those that a simple loop over the events finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import _core
from plimsoll.recordings.analysis.block_history import BlockHistory, find_lifetimes
from plimsoll.recordings.analysis.lifetimes import Lifetimes
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import LoadedTrace
from tests.recordings import EXAMPLES, LARGE, SMALL, Recorded, recordings_in

if TYPE_CHECKING:
    from collections.abc import Sequence

ALLOC, REQUESTED, COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
Event = tuple[int, int, int]


def batch(events: Sequence[Event]) -> EventBatch:
    """Returns a batch of these events (action, address, size); event i has the stack i + 1."""
    count = len(events)
    zeros = np.zeros(count, dtype=np.uint64)
    columns = {
        name: np.array([event[place] for event in events], dtype=np.uint64)
        for place, name in enumerate(("action", "address", "size"))
    }
    others = dict.fromkeys(("stream", "time_us", "pool_first", "pool_second"), zeros)
    return EventBatch.of({**columns, **others, "stack": np.arange(1, count + 1)})


def lifetimes_of(
    events: Sequence[Event], segments: Sequence[_core.SegmentInfo] = ()
) -> list[tuple[int, ...]]:
    """Returns start, end, completed, address, size and stack of each block."""
    return rows(find(events, segments))


def find(events: Sequence[Event], segments: Sequence[_core.SegmentInfo] = ()) -> Lifetimes:
    return find_lifetimes(LoadedTrace(0, batch(events), list(segments)))


def rows(found: Lifetimes) -> list[tuple[int, ...]]:
    columns = (found.start, found.end, found.completed, found.address, found.size, found.stack)
    return [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def naive(events: Sequence[Event]) -> list[tuple[int, ...]]:
    """Computes the result of `lifetimes_of` by a simple loop. The history must be consistent."""
    blocks: list[list[int]] = []
    open_blocks: dict[int, list[int]] = {}
    end = len(events)
    for number, (action, address, size) in enumerate(events):
        if action == ALLOC:
            open_blocks[address] = [number, end, end, address, size, number + 1]
            blocks.append(open_blocks[address])
        elif action in (REQUESTED, COMPLETED):
            if address not in open_blocks:
                open_blocks[address] = [-1, -1, end, address, size, 0]
                blocks.append(open_blocks[address])
            open_blocks[address][1 if action == REQUESTED else 2] = number
            if action == COMPLETED:
                del open_blocks[address]
    return sorted((tuple(block) for block in blocks), key=lambda block: (block[0], block[3]))


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Draws the history of an allocator.

    At each address three events take turns: the allocation, the request to free it, and the
    completion of the free. The history of an address may begin with any of the three events.
    """
    state: dict[int, int] = {}
    events: list[Event] = []
    for _ in range(draw(st.integers(0, 40))):
        address = draw(st.integers(1, 6))
        following = {None: [ALLOC, REQUESTED, COMPLETED], ALLOC: [REQUESTED],
                     REQUESTED: [COMPLETED], COMPLETED: [ALLOC]}  # fmt: skip
        if draw(st.integers(0, 9)) == 0:
            events.append((Action.OOM, address, 99))
            continue
        action = draw(st.sampled_from(following[state.get(address)]))  # type: ignore[index]
        state[address] = action
        events.append((action, address, draw(st.integers(1, 1000))))
    return events


@given(histories(), st.integers(1, 50))
def test_blocks_are_paired_as_one_by_one(events: list[Event], batch_size: int) -> None:
    trace = LoadedTrace(0, batch(events), [])
    trace.BATCH = batch_size
    assert rows(find_lifetimes(trace)) == naive(events)


@given(histories())
def test_the_level_is_the_sum_of_what_is_live(events: list[Event]) -> None:
    found = find(events)
    assert found.level().tolist() == [
        int(found.size[found.live_at(event)].sum()) for event in range(len(events))
    ]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_contradictory_histories_give_what_can_be_paired(events: list[Event]) -> None:
    found = find(events)
    allocations = [number for number, event in enumerate(events) if event[0] == ALLOC]
    assert found.start[found.start >= 0].tolist() == allocations
    assert (found.end >= found.start).all()


@given(
    st.one_of(
        histories(),
        st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5), st.integers(0, 9)), max_size=40),
    ),
    st.integers(1, 12),
    st.data(),
)
def test_stretches_are_parts_of_the_whole(
    events: list[Event], events_each: int, data: st.DataObject
) -> None:
    whole = find(events)
    history = BlockHistory(LoadedTrace(0, batch(events), []), events=events_each)
    stretches = [*history]
    assert rows(Lifetimes.join([history.before, *(one.began for one in stretches)])) == rows(whole)
    level = whole.level().tolist()
    assert [size for one in stretches for size in one.level.tolist()] == level
    for one in stretches:
        is_carried = (whole.start < one.first) & (whole.end >= one.first)
        assert sorted(one.carried.address[one.carried.end >= one.first].tolist()) == sorted(
            whole.address[is_carried].tolist()
        )
    since = whole[whole.start >= 0]
    lives = [
        -1 if end == len(events) else int((since.start < end).sum()) - number
        for number, end in enumerate(since.end.tolist())
    ]
    assert [life for one in stretches for life in one.lives.tolist()] == lives
    if events:
        first = data.draw(st.integers(0, len(events) - 1))
        last = data.draw(st.integers(first + 1, len(events)))
        window = history.window(first, last)
        assert window.level.tolist() == level[first:last]
        assert window.lives.tolist() == [
            life
            for life, start in zip(lives, since.start.tolist(), strict=True)
            if first <= start < last
        ]


def test_a_history_without_completions_pairs_all_the_same() -> None:
    events = [(ALLOC, 1, 10), (REQUESTED, 1, 10), (ALLOC, 1, 20)]
    assert lifetimes_of(events) == [(0, 1, 3, 1, 10, 1), (2, 3, 3, 1, 20, 3)]


def test_what_the_final_segments_alone_know_was_there_before() -> None:
    blocks = [
        _core.BlockInfo(512, 512, 500, "active_allocated", 7),
        _core.BlockInfo(1024, 512, 512, "active_pending_free", 0),
        _core.BlockInfo(1536, 512, 512, "active_allocated", 0),
        _core.BlockInfo(2048, 512, 0, "inactive", 0),
    ]
    pool = _core.PoolId(0, 3)
    segment = _core.SegmentInfo(512, 4096, 5, pool, True, False, 0, blocks)
    events = [(ALLOC, 1536, 512), (REQUESTED, 9, 64), (COMPLETED, 9, 64)]
    found = find(events, [segment])
    assert rows(found) == [
        (-1, 1, 2, 9, 64, 0),
        (-1, 3, 3, 512, 500, 7),
        (-1, -1, 3, 1024, 512, 0),
        (0, 3, 3, 1536, 512, 1),
    ]
    assert found.level().tolist() == [500 + 64 + 512, 500 + 512, 500 + 512]
    assert [found.pools[number] for number in found.pool] == [(0, 0), (0, 3), (0, 3), (0, 0)]
    assert found.stream.tolist() == [0, 5, 5, 0]


def test_of_a_recording_that_was_cut_off_the_start_is_known() -> None:
    blocks = [
        _core.BlockInfo(512, 512, 500, "active_allocated", 0),
        _core.BlockInfo(1024, 512, 512, "active_allocated", 0),
        _core.BlockInfo(1536, 512, 0, "inactive", 0),
    ]
    before = _core.SegmentInfo(512, 4096, 5, _core.PoolId(), True, False, 0, blocks)

    class CutOff(LoadedTrace):
        def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:  # noqa: ARG002
            return [before]

    events = [(REQUESTED, 1024, 512), (COMPLETED, 1024, 512), (ALLOC, 1024, 64)]
    found = find_lifetimes(CutOff(0, batch(events), []))
    assert rows(found) == [
        (-1, 3, 3, 512, 500, 0),
        (-1, 0, 1, 1024, 512, 0),
        (2, 3, 3, 1024, 64, 3),
    ]


@pytest.mark.parametrize(
    "recorded", recordings_in(SMALL) + recordings_in(LARGE), ids=lambda recorded: recorded.name
)
def test_recordings_pair_as_one_by_one(recorded: Recorded) -> None:
    (trace,) = read_recording(recorded.path).devices
    trace.segments = []
    everything = trace.load()
    columns = (everything.action, everything.address, everything.size)
    events = list(zip(*(column.tolist() for column in columns), strict=True))
    found = find_lifetimes(trace)
    expected = naive(events)
    for place, column in enumerate((found.start, found.end, found.completed, found.address)):
        assert column.tolist() == [block[place] for block in expected]


def test_the_example_ends_with_what_its_segments_hold() -> None:
    (trace,) = read_recording(EXAMPLES / "gpt2_adamw.pickle.gz").devices
    found = find_lifetimes(trace)
    live = found[found.live_at(trace.event_count - 1)]
    held = [
        (block.address, block.requested)
        for segment in trace.segments
        for block in segment.blocks
        if block.state == "active_allocated"
    ]
    assert sorted(zip(live.address.tolist(), live.size.tolist(), strict=True)) == held
