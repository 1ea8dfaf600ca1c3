"""Tests the advice against leaks, and histories in which plimsoll frees the leaked blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.units import MiB
from plimsoll.explanation.explain import explain
from plimsoll.explanation.first_lines import first_lines
from plimsoll.explanation.leak_advice import FoundLeak, _by_change, _words
from plimsoll.explanation.mended_leaks import with_leak_mended
from plimsoll.explanation.parts import Advice
from plimsoll.explanation.ranking import needed
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.leaks import Leak
from plimsoll.recordings.analysis.steps import NO_STEPS, find_steps
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.kept_over_passes import UNSEEN
from plimsoll.recordings.recording import Mark, Recording
from tests.unit.test_analysis_steps import Program

if TYPE_CHECKING:
    from plimsoll.recordings.events import Frame

STEPS = 20
STACKS: dict[int, list[Frame]] = {
    1: [("/w/train.py", 1, "main")],
    2: [("/w/train.py", 2, "main")],
}


def leaking(stack: int, *, given_back: int | None = None) -> Recording:
    """Returns a recording in which each step leaks a block of 20 MiB.

    With `given_back`, the program frees each block this many steps later.
    """
    program = Program()
    program.malloc(64 * MiB, 1)
    kept: list[int] = []
    marks = []
    for _ in range(STEPS):
        marks.append(Mark(len(program.events), 0, "step"))
        block = program.malloc(30 * MiB, 1)
        kept.append(program.malloc(20 * MiB, stack))
        program.free(block)
        if given_back is not None and len(kept) > given_back:
            program.free(kept.pop(0))
    marks.append(Mark(len(program.events), 0, "step"))
    trace = program.trace()
    trace.frames = lambda stack: STACKS.get(stack, [])  # type: ignore[method-assign]
    return Recording("leaking", [trace], {}, marks)


@pytest.mark.parametrize(
    ("stack", "what", "how"),
    [
        (
            2,
            "keep nothing of train.py:2 main on the GPU",
            "kept.append(result.detach().cpu())",
        ),
        (0, "find out what keeps blocks of 20.00 MiB", "plimsoll run --record run.plim"),
    ],
)
def test_a_leak_comes_first_with_its_line_and_what_to_do_there(
    stack: int, what: str, how: str
) -> None:
    recording = leaking(stack)
    if not stack:
        recording = without_stacks(recording)
    found = explain(recording)
    first, *others = found.advice
    assert first.kind == "leak"
    assert first.what == f"{what} (20.00 MiB more each step)"
    assert (first.how, first.cost) == (how, "nothing")
    # Each step leaks a block of 20 MiB. The advice must save all but three of these blocks. Without
    # call stacks, plimsoll does not count the blocks of the two warm-up steps as leaked, so the
    # advice may save two blocks fewer.
    assert first.saves_bytes >= (STEPS - (3 if stack else 5)) * 20 * MiB
    assert "leak" not in {one.kind for one in others}
    assert f"\n  1. {first.what}: saves at least " in str(found)


def without_stacks(recording: Recording) -> Recording:
    (trace,) = recording.devices
    events = trace.load()
    events.stack[:] = 0
    return recording


def test_a_program_that_gives_back_what_it_keeps_gets_no_advice_about_leaks() -> None:
    found = explain(leaking(2, given_back=3))
    assert found.leaks == []
    assert "leak" not in {one.kind for one in found.advice}


def test_a_leak_that_filled_the_card_is_what_serves_the_request_first() -> None:
    found = explain(leaking(2), limit="300MiB")
    first = found.advice[0]
    assert (first.kind, first.serves_failed_requests, first.saves_bytes) == ("leak", True, 0)
    assert "serves the request that failed" in str(found)
    assert {"limit", "spill"} <= {one.kind for one in found.advice[1:]}
    # No allocator setting is advised, since it would only delay the failure.
    assert not {"setting", "elastic"} & {one.kind for one in found.advice}


def test_other_advice_for_a_leaking_program_follows_and_says_that_it_only_delays() -> None:
    saving = Advice("elastic", "use it", "how", "nothing", 9 * MiB, 20 * MiB)
    grows = Cause("kept_over_passes", "", "", 20 * MiB, growth_bytes=MiB)
    little = replace(grows, bytes=MiB)
    (kept,) = needed([saving], [grows], None, 30 * MiB)
    assert "only delays the failure" in kept.note
    assert needed([saving], [], None, 30 * MiB) == [saving]
    assert needed([saving], [little], None, 30 * MiB) == [saving]
    assert needed([replace(saving, serves_failed_requests=True)], [grows], None, 30 * MiB) == []


def test_a_setting_that_leaves_hardly_any_memory_says_so() -> None:
    serves = Advice("setting", "turn it on", "how", "nothing", 0, 990 * MiB)
    serves = replace(serves, serves_failed_requests=True)
    (barely,) = needed([serves], [], None, 999 * MiB, room_bytes=1000 * MiB)
    assert barely.note == "leaves only 10.00 MiB unreserved, so a later request may fail"
    (amply,) = needed([serves], [], None, 999 * MiB, room_bytes=1100 * MiB)
    assert amply.note == ""


def test_a_leak_that_was_not_tried_says_so() -> None:
    recording = leaking(2)
    (trace,) = recording.devices
    # The search may replay only as many events as the recording has. The replay of the
    # recorded settings uses them up, so plimsoll does not replay the program without the leak.
    found = explain(recording, search_events=trace.event_count)
    for one in found.advice[:1]:
        assert (one.kind, one.saves_bytes) == ("leak", 0)
        assert not one.was_tried
        assert one.note == "not tried: how much this saves is not known"
    assert "\nAdvice, the cheapest first, not tried;" in str(found)
    # The first lines offer no cause's patch here, but the advice.
    first = "\n".join(first_lines(replace(found, causes=[])))
    assert "What may help (not tried): " in first
    assert "tried a change" not in first
    assert found.search_ended_early


def test_the_lines_of_a_graph_get_one_piece_of_advice_at_the_line_that_keeps_it() -> None:
    def found(line: int, sentence: str, patch: str) -> FoundLeak:
        leak = Leak(f"train.py:{line} main", line * MiB, 1.0, 30 * MiB, 30, 0)
        where = "train.py:9 main" if line < 4 else leak.what
        cause = Cause("kept_over_passes", sentence, "keep it there", MiB, where, patch)
        return FoundLeak(leak, np.arange(8) == line, cause, NO_STEPS)

    graph, right = "the graph that train.py:9 makes", "losses.append(loss.item())"
    leaks = [
        found(4, "train.py:4 keeps", UNSEEN[1]),
        found(3, graph, right),
        found(2, graph, right),
        found(5, "train.py:5 keeps", "outputs.append(y.cpu())"),
    ]
    groups = [[one.leak.what[9] for one in group] for group in _by_change(leaks)]
    assert groups == [["3", "2", "4"], ["5"]]
    words = _words(_by_change(leaks)[0], has_stacks=True)
    assert words == ("keep it at train.py:9 (9.00 MiB more each step)", right)


@given(st.integers(1, STEPS))
def test_without_a_leak_every_request_is_there_and_nothing_of_it_outlives_the_next_step(
    keeps: int,
) -> None:
    recording = leaking(2, given_back=keeps)
    (trace,) = recording.devices
    lifetimes = find_lifetimes(trace)
    steps = find_steps(lifetimes, recording.marks, device=0)
    edited = with_leak_mended(recording, lifetimes, steps, lifetimes.stack == 2)
    assert (edited is None) == (keeps < 2)
    if edited is None:
        return
    before, after = (find_lifetimes(one.devices[0]) for one in edited)
    assert np.array_equal(before.end, lifetimes.end)
    assert np.array_equal(after.size, lifetimes.size)
    assert after.level().max() <= before.level().max()
    assert after.level().max() <= (64 + 30 + 20 * 3) * MiB


def test_without_a_leak_the_first_step_keeps_what_later_steps_do_not_make() -> None:
    recording = leaking(2)
    (trace,) = recording.devices
    lifetimes = find_lifetimes(trace)
    steps = find_steps(lifetimes, recording.marks, device=0)
    # Now the first step keeps two blocks of one stack, like a program that creates buffers first.
    lifetimes.stack[0] = 2
    early = replace(steps, boundaries=np.delete(steps.boundaries, 1))
    edited = with_leak_mended(recording, lifetimes, early, lifetimes.stack == 2)
    assert edited is not None
    after = find_lifetimes(edited[1].devices[0])
    assert after.end[0] >= after.event_count
    assert after.end[lifetimes.stack == 2][5] < after.event_count
