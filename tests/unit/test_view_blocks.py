"""Tests the blocks that belong to a window of events, and the blocks that fit into a page."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.page.blocks import blocks_between, largest_that_fit, pack_blocks
from plimsoll.page.columns import packed_size
from plimsoll.page.device_view import DeviceView, make_device_view
from plimsoll.page.document import make_page
from plimsoll.page.run import prepare
from plimsoll.recordings.events import Action
from tests.unit.packed_columns import unpack_column
from tests.unit.view_histories import KiB, Row, held_after_each, histories, recording_of


def view_of(rows: list[Row]) -> DeviceView:
    recording = recording_of(rows)
    return make_device_view(recording, recording.devices[0])


@given(histories(), st.data())
def test_a_window_has_every_block_that_was_held_in_it(rows: list[Row], data: st.DataObject) -> None:
    view = view_of(rows)
    begin = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(begin + 1, len(rows)))
    held = {
        (one.row[1], one.row[2])
        for state in held_after_each(rows)[begin:end]
        for one in state.values()
    }
    found = view.lifetimes[blocks_between(view, begin, end)]
    assert set(zip(found.address.tolist(), found.size.tolist(), strict=True)) == held


@given(histories())
def test_packed_blocks_say_when_they_began_and_ended(rows: list[Row]) -> None:
    view = view_of(rows)
    packed = pack_blocks(view, np.arange(len(view.lifetimes)))
    start, life, wait = (unpack_column(packed[name]) for name in ("start", "life", "wait"))
    end = np.where(life == 0, len(rows), start + life - 1)
    completed = np.where(wait == 0, len(rows), end + wait - 1)
    assert start.tolist() == view.lifetimes.start.tolist()
    assert end.tolist() == view.lifetimes.end.tolist()
    assert completed.tolist() == view.lifetimes.completed.tolist()
    address = unpack_column(packed["address"]) + view.origin
    assert address.tolist() == view.lifetimes.address.tolist()


@given(histories())
def test_a_block_names_the_stack_of_its_free(rows: list[Row]) -> None:
    """Gives each free its own stack, numbered 10 above the stack of the allocation."""
    told = [(*row[:4], row[4] + 10 * (row[0] == Action.FREE_REQUESTED), row[5]) for row in rows]
    stacks = {number: [("/me/a.py", number, "main")] for number in range(1, 20)}
    recording = recording_of(told, stacks=stacks)
    view = make_device_view(recording, recording.devices[0])
    packed = pack_blocks(view, np.arange(len(view.lifetimes)))
    freed_by = unpack_column(packed["freed_by"]).tolist()
    for end, number in zip(view.lifetimes.end.tolist(), freed_by, strict=True):
        frames = stacks.get(told[end][4], []) if end < len(rows) else []
        assert view.stacks.frames(number) == frames


@pytest.mark.parametrize(
    ("conf", "allocator", "taken"),
    [
        ("", "native", [512, 1024, 69 * KiB + 512]),
        ("roundup_power2_divisions:2", "native", [512, 1024, 96 * KiB]),
        ("", "elastic", [512, 1024, 69 * KiB + 512]),
    ],
)
def test_a_block_takes_what_the_rule_says(conf: str, allocator: str, taken: list[int]) -> None:
    sizes = [8, 513, 69 * KiB + 1]
    rows: list[Row] = [(Action.ALLOC, i << 20, size, 0, 0, 0) for i, size in enumerate(sizes)]
    recording = recording_of(rows, conf=conf)
    recording.settings["allocator"] = allocator
    view = make_device_view(recording, recording.devices[0])
    assert view.rounded.tolist() == taken
    packed = pack_blocks(view, np.arange(3))
    plain = -(-np.array(sizes) // 512) * 512
    assert (plain + unpack_column(packed["rounding"])).tolist() == taken


@given(histories(), st.integers(0, 4000))
def test_the_largest_that_fit_are_whole_sizes(rows: list[Row], room: int) -> None:
    view = view_of(rows)
    packed, kept, least = largest_that_fit(view, room)
    sizes = view.lifetimes.size
    assert kept.tolist() == np.flatnonzero(sizes >= least).tolist()
    assert packed_size(packed) <= room or len(kept) == 0


def test_what_is_left_out_is_between_its_sums() -> None:
    random = np.random.default_rng(1)
    rows: list[Row] = []
    for i in range(3000):
        size = int(random.integers(1, 1 << 24))
        rows.append((0, (i + 1) << 25, size, 0, 0, 0))
        if i % 3 == 0:
            rows.extend([(1, (i + 1) << 25, size, 0, 0, 0), (2, (i + 1) << 25, size, 0, 0, 0)])
    run = prepare(recording_of(rows))
    whole = make_page([run])
    assert (whole.blocks_left_out, whole.least_bytes) == (0, 0)
    # too few bytes to contain all blocks
    page = make_page([run], most_bytes=len(whole.html) + 55_000)
    assert 0 < page.blocks_left_out < page.blocks
    text = re.search(r'id="data">(.*?)</script>', page.html)
    assert text is not None
    (device,) = json.loads(text[1])["runs"][0]["devices"]
    low, high = (unpack_column(device["left_out"][name]) for name in ("low", "high"))
    states = [
        sum(one.row[2] for one in state.values() if one.live and one.row[2] < page.least_bytes)
        for state in held_after_each(rows)
    ]
    assert device["overview"]["span"] == 1
    assert low.tolist() == high.tolist() == states
