"""Tests the page's overview of a history, and its tables of live memory by group.

The overview divides the history into spans of many events. A span keeps its highest and lowest
live memory, so no peak is lost.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.page import overview
from plimsoll.page.device_view import DeviceView, make_device_view
from tests.unit.view_histories import (
    STACKS,
    Held,
    Row,
    held_after_each,
    histories,
    live_bytes,
    recording_of,
)


def view_of(rows: list[Row]) -> DeviceView:
    recording = recording_of(rows, stacks=STACKS)
    return make_device_view(recording, recording.devices[0])


@given(histories(), st.sampled_from([1, 3, 1000]))
def test_each_span_has_its_highest_and_lowest_moment(rows: list[Row], most_spans: int) -> None:
    levels = live_bytes(held_after_each(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "MOST_SPANS", most_spans)
        made = view_of(rows).overview()
    assert len(made.top) <= most_spans
    for number, top in enumerate(made.top.tolist()):
        begin = number * made.span
        part = levels[begin : begin + made.span]
        assert made.high[number] == max(part)
        assert made.low[number] == min(part)
        assert top == begin + part.index(max(part))
        assert made.begin_us[number] == 3 * begin
    assert made.high.max() == max(levels)


def group_of(key: str, held: Held, groups: list[str]) -> dict[str, int]:
    """Returns a block's bytes in each group, computed without the page's tables."""
    _, _, size, stream, stack, shared = held.row
    if key == "tier":
        return {"dedicated": size - shared, "shared": shared}
    if key == "stream":
        return {"default stream" if stream == 0 else "stream 0x1": size}
    if key == "line":
        lines = {0: "(no Python line)", 1: "model.py:10 forward", 2: "train.py:95 main",
                 3: "model.py:20 forward"}  # fmt: skip
        return {next(group for group in groups if group.endswith(lines[stack])): size}
    bounds = [64 << 10, 1 << 20, 10 << 20, 100 << 20, 1 << 30]
    return {groups[sum(size >= bound for bound in bounds)]: size}


@given(histories())
def test_groups_hold_what_their_blocks_hold(rows: list[Row]) -> None:
    view = view_of(rows)
    states = held_after_each(rows)
    events = np.arange(len(rows))
    for key in view.keys:
        found = view.bytes_by_group(key, events)
        assert found.sum(axis=1).tolist() == live_bytes(states)
        if key.name == "category":
            continue
        for event, state in enumerate(states):
            expected = dict.fromkeys(key.groups, 0)
            for held in state.values():
                if held.live:
                    for group, size in group_of(key.name, held, list(key.groups)).items():
                        expected[group] += size
            assert dict(zip(key.groups, found[event].tolist(), strict=True)) == expected


def test_groups_beyond_what_can_be_told_apart_are_one() -> None:
    rows = [(0, 4096 * i, 100 - i, i, 0, 0) for i in range(20)]
    view = view_of(rows)
    (key,) = [key for key in view.keys if key.name == "stream"]
    assert len(key.groups) == 11
    assert key.groups[0] == "default stream"
    assert key.groups[-1] == "10 others"
    found = view.bytes_by_group(key, np.array([19]))[0]
    assert found[-1] == sum(100 - i for i in range(10, 20))
