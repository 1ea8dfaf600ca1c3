"""Tests the timeline's marks, and their texts."""

from __future__ import annotations

import numpy as np

from plimsoll.page.device_view import make_device_view
from plimsoll.page.marks import find_failures, find_releases, named_marks
from plimsoll.recordings.events import Action
from plimsoll.recordings.recording import Mark
from tests.unit.view_histories import MiB, Row, recording_of

TAKE, GIVE = int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_FREE)
ALLOC, OOM = int(Action.ALLOC), int(Action.OOM)


def kinds(rows: list[Row], *, collects: bool = False) -> list[tuple[int, str]]:
    batch = recording_of(rows).devices[0].load()
    rare = np.flatnonzero(batch.action >= TAKE)
    found = find_releases(batch[rare], rare, 0, collects=collects)
    return [(moment.event, moment.kind) for moment in found]


def segment(action: int, address: int, size: int) -> Row:
    return (action, address * MiB, size * MiB, 0, 0, 0)


def test_a_release_for_more_than_was_ever_reserved_is_a_retry() -> None:
    rows = [
        segment(TAKE, 0, 20),
        segment(GIVE, 0, 20),
        segment(TAKE, 100, 20),
        segment(TAKE, 200, 2),
    ]
    # Peak reserved was 20 MiB. It would have been 40 MiB if the first segment had stayed.
    assert kinds([*rows[:3]]) == [(1, "retry")]
    assert kinds([segment(TAKE, 0, 20), segment(TAKE, 50, 20), *rows[1:]]) == [(2, "retry")]


def test_a_release_before_a_failure_is_a_retry() -> None:
    rows = [segment(TAKE, 0, 20), segment(GIVE, 0, 20), (OOM, 5 * MiB, 90 * MiB, 0, 0, 0)]
    assert kinds(rows) == [(1, "retry")]


def test_a_release_that_made_no_room_was_asked_for() -> None:
    rows = [segment(TAKE, 0, 20), segment(TAKE, 50, 20), segment(GIVE, 0, 20)]
    rows += [segment(GIVE, 50, 20), (ALLOC, 0, 512, 0, 0, 0), segment(TAKE, 0, 20)]
    assert kinds(rows) == [(2, "empty_cache")]


def test_with_a_threshold_a_release_for_new_memory_is_a_collection() -> None:
    rows = [segment(TAKE, 0, 20), segment(TAKE, 50, 40), segment(GIVE, 0, 20), segment(TAKE, 0, 2)]
    assert kinds(rows, collects=True) == [(2, "collection")]
    assert kinds(rows) == [(2, "retry")]


def test_a_failure_says_what_was_asked_and_what_was_free() -> None:
    batch = recording_of([(OOM, 5 * MiB, 90 * MiB, 0, 0, 0)]).devices[0].load()
    (moment,) = find_failures(batch, np.arange(1), [0])
    assert (moment.event, moment.kind) == (0, "oom")
    assert "90.00 MiB more was needed" in moment.text
    assert "5.00 MiB free" in moment.text


def test_named_marks_are_those_of_their_device() -> None:
    marks = [Mark(1, 0, "warm"), Mark(2, 0, "mine", 1), Mark(9, 0, "late", 0), Mark(1, 0, "step")]
    found = named_marks(marks, 0, 5)
    assert [(moment.event, moment.text) for moment in found] == [(1, "warm"), (4, "late")]


def test_steps_that_the_program_marked_are_shown_as_such() -> None:
    rows = [(ALLOC, 4096 * i, 512, 0, 0, 0) for i in range(6)]
    recording = recording_of(rows, marks=[Mark(2, 0, "step"), Mark(4, 0, "step")])
    view = make_device_view(recording, recording.devices[0])
    steps = [(moment.event, moment.text) for moment in view.moments if moment.kind == "step"]
    assert steps == [(2, "step 1 ends"), (4, "step 2 ends")]
    assert any("as the program marked them" in note for note in view.notes)
