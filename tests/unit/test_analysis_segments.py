"""Checks that the ranges that plimsoll finds cover exactly the reserved bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import _core
from plimsoll.recordings.analysis.segments import find_segments
from plimsoll.recordings.events import Action
from tests.unit.view_histories import MadeUpTrace, Row, recording_of

TAKE = [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]
GIVE = [Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]


@st.composite
def segment_events(draw: st.DrawFn) -> list[Row]:
    """Draws reservations and releases of ranges.

    A release may cover a part of a reserved range, or memory that is not reserved.
    """
    rows = []
    for _ in range(draw(st.integers(1, 25))):
        action = draw(st.sampled_from(TAKE + GIVE))
        rows.append((int(action), draw(st.integers(1, 20)), draw(st.integers(1, 8)), 0, 0, 0))
    return rows


@given(segment_events())
def test_a_range_is_there_from_when_it_is_taken_until_it_is_given_back(rows: list[Row]) -> None:
    recording = recording_of(rows)
    trace = recording.devices[0]
    found, notes = find_segments(trace.load(), np.arange(len(rows)), trace, "")
    assert notes == []
    there: set[int] = set()
    for event, (action, address, size, *_) in enumerate(rows):
        part = set(range(address, address + size))
        there = there | part if action in TAKE else there - part
        shown: list[int] = []
        for row in np.flatnonzero((found.start <= event) & (found.end > event)).tolist():
            begin = int(found.address[row])
            shown.extend(range(begin, begin + int(found.size[row])))
        assert len(shown) == len(set(shown)), "no byte is in two ranges"
        assert set(shown) == there


def test_what_was_there_before_the_history_is_shown_from_its_beginning() -> None:
    segment = _core.SegmentInfo(1 << 21, 1 << 21, 0, _core.PoolId(0, 0), True, False, 0, [])
    loaded = recording_of([(int(Action.ALLOC), 1 << 30, 512, 0, 0, 0)]).devices[0]
    trace = MadeUpTrace(0, loaded.load(), [segment])
    found, notes = find_segments(trace.load(), np.arange(1), trace, "")
    assert found.start.tolist() == [-1]
    assert found.size.tolist() == [1 << 21]
    assert len(notes) <= 1


def test_shared_memory_is_divided_with_its_range() -> None:
    mapped, unmapped = int(Action.SEGMENT_MAP), int(Action.SEGMENT_UNMAP)
    rows = [(mapped, 0, 100, 0, 0, 40), (unmapped, 50, 50, 0, 0, 0)]
    trace = recording_of(rows).devices[0]
    found, _ = find_segments(trace.load(), np.arange(2), trace, "")
    parts = zip(found.address.tolist(), found.size.tolist(), found.shared.tolist(), strict=True)
    assert sorted(parts) == [(0, 50, 20), (50, 50, 20)]
