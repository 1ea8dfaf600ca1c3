"""Tests `explain` on recordings of small programs whose memory use is known."""

from __future__ import annotations

import itertools
import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from plimsoll import Allocator, InputError, OutOfMemoryError, SimulatedGpu
from plimsoll.base.units import MiB
from plimsoll.engine.replays.replay import replay
from plimsoll.explanation.advice import _different
from plimsoll.explanation.explain import explain
from plimsoll.explanation.explanation import Explanation
from plimsoll.explanation.gradients import with_earlier_zero_grad
from plimsoll.explanation.parts import StepsFound
from plimsoll.explanation.search import conf_keys, conf_text
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import LoadedTrace, Mark, Recording
from plimsoll.recordings.snapshot_reader import read_snapshot
from tests.unit.test_analysis_steps import Program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from plimsoll.recordings.events import Frame


def recorded(
    program: Callable[[Allocator], None], *, memory: str = "1GiB", conf: str = ""
) -> Recording:
    allocator = Allocator(SimulatedGpu(memory), conf=conf)
    allocator.record_memory_history(stacks=True)
    program(allocator)
    return read_snapshot(pickle.dumps(allocator.memory_snapshot()))


def explained(
    program: Callable[[Allocator], None], *, memory: str = "1GiB", conf: str = ""
) -> Explanation:
    return explain(recorded(program, memory=memory, conf=conf), advice=False)


# --- parts of reserved memory and fragmentation --------------------------------------------------


def test_reserved_memory_is_taken_apart() -> None:
    def program(allocator: Allocator) -> None:
        blocks = [allocator.malloc("30MiB") for _ in range(3)]
        allocator.free(blocks[1])  # its segment of 30 MiB stays in the cache
        allocator.free(blocks[2])
        allocator.malloc("12MiB")  # takes a part of a cached segment; the rest is a fragment
        allocator.malloc("50MiB")

    found = explained(program)
    assert found.reserved.exact
    assert found.reserved.reserved_bytes == 140 * MiB
    assert found.reserved.allocated_bytes == 92 * MiB
    assert found.reserved.cached_bytes == 30 * MiB
    assert found.reserved.fragments_bytes == 18 * MiB
    assert found.fragmentation.free_bytes == 48 * MiB
    assert found.fragmentation.largest_request_bytes == 30 * MiB
    (pinned,) = found.fragmentation.pinned
    assert (pinned.total_bytes, pinned.free_bytes, pinned.blocks) == (30 * MiB, 18 * MiB, 1)
    assert "test_explanation.py" in pinned.lines[0].line
    assert pinned.lines[0].line.endswith("program")


def test_the_largest_request_heeds_the_settings() -> None:
    def program(allocator: Allocator) -> None:
        block = allocator.malloc("200MiB")
        small = allocator.malloc("30MiB")
        allocator.free(block)
        allocator.free(small)
        allocator.malloc("101MiB")

    # With this setting a request takes the free block of 200 MiB only if less than 20 MiB remain.
    # So the free blocks serve requests up to 30 MiB, and requests between 180 and 200 MiB.
    found = explained(program, conf="max_split_size_mb:64")
    assert found.fragmentation.largest_hole_bytes == 200 * MiB
    assert found.fragmentation.largest_request_bytes == 200 * MiB
    rounding = explained(program, conf="roundup_power2_divisions:2")
    hole, request = (
        rounding.fragmentation.largest_hole_bytes,
        rounding.fragmentation.largest_request_bytes,
    )
    assert request is not None
    assert request <= hole


def test_the_peak_names_lines_and_counts_rounding() -> None:
    def program(allocator: Allocator) -> None:
        allocator.malloc(1000)
        for _ in range(3):
            allocator.malloc("8MiB")
        allocator.free(allocator.malloc("1MiB"))

    peak = explained(program).peak
    assert peak.requested_bytes == 25 * MiB + 1000
    assert peak.by_category["rounding"] == 24
    assert peak.allocated_bytes == 25 * MiB + 1024
    assert [(line.bytes, line.blocks) for line in peak.lines] == [
        (24 * MiB, 3), (MiB, 1), (1000, 1)
    ]  # fmt: skip
    assert peak.seconds is not None


# --- why a request failed ------------------------------------------------------------------------


def fail(allocator: Allocator, size: str, *, stream: int = 0) -> None:
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(size, stream=stream)


def test_too_little_memory_is_told_with_what_is_missing() -> None:
    def program(allocator: Allocator) -> None:
        for _ in range(9):
            allocator.malloc("100MiB")
        fail(allocator, "200MiB")

    (failed,) = explained(program).out_of_memory
    assert (failed.cause, failed.reason) == ("card", "too_little")
    assert failed.missing_bytes == 900 * MiB + 200 * MiB - 1024 * MiB
    assert failed.device_free_bytes == 124 * MiB
    assert failed.at is not None
    assert failed.at.endswith("fail")


def with_holes(allocator: Allocator, stream: int = 0) -> list[int]:
    """Makes ten segments of 100 MiB, each with 60 MiB free. Returns the live blocks."""
    blocks = [allocator.malloc("100MiB", stream=stream) for _ in range(10)]
    for block in blocks:
        allocator.free(block)
    return [allocator.malloc("40MiB", stream=stream) for _ in range(20)][::2]


def test_fragmentation_is_told_with_the_largest_piece() -> None:
    def program(allocator: Allocator) -> None:
        for block in with_holes(allocator):
            allocator.free(block)
        fail(allocator, "90MiB")

    (failed,) = explained(program).out_of_memory
    assert (failed.cause, failed.reason) == ("card", "fragmentation")
    assert failed.missing_bytes == 0
    assert failed.free_bytes == 600 * MiB
    assert failed.largest_hole_bytes < 90 * MiB


def test_memory_of_other_streams_is_told_apart() -> None:
    def program(allocator: Allocator) -> None:
        kept = allocator.malloc("900MiB", stream=7)
        allocator.free(kept)
        allocator.malloc("100MiB", stream=7)  # stream 7 keeps the other 800 MiB
        fail(allocator, "300MiB")

    (failed,) = explained(program).out_of_memory
    assert failed.reason == "other_streams"
    assert failed.largest_hole_bytes == 0


def test_memory_of_private_pools_is_told_apart() -> None:
    def program(allocator: Allocator) -> None:
        pool = allocator.make_pool()
        with allocator.use_pool(pool):
            allocator.free(allocator.malloc("900MiB"))
        fail(allocator, "300MiB")

    (failed,) = explained(program).out_of_memory
    assert failed.reason == "other_pools"


def too_much_for_half_a_card(allocator: Allocator) -> None:
    allocator.set_per_process_memory_fraction(0.5)
    allocator.malloc("400MiB")
    fail(allocator, "200MiB")


def test_a_limit_is_told_from_a_full_card() -> None:
    recording = recorded(too_much_for_half_a_card)
    (failed,) = explain(recording, advice=False).out_of_memory
    assert (failed.cause, failed.reason) == ("limit", "too_little")
    assert failed.missing_bytes is None
    assert failed.limit_range_bytes == (400 * MiB, 600 * MiB)
    (given,) = explain(recording, advice=False, limit="512MiB").out_of_memory
    assert given.missing_bytes == 88 * MiB


# --- limits that the recorded program did not have -----------------------------------------------


def nine_blocks(allocator: Allocator) -> None:
    for _ in range(9):
        allocator.malloc("100MiB")


def request(recording: Recording, number: int) -> int:
    """Returns the event number of an allocation. `number` counts the allocations from 0."""
    action = recording.devices[0].load().action
    return int(np.flatnonzero(action == Action.ALLOC)[number])


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_limit_below_the_peak_tells_where_memory_runs_out(conf: str) -> None:
    recording = recorded(nine_blocks, conf=conf)
    found = explain(recording, limit="512MiB")
    (failed,) = found.out_of_memory
    assert failed.event == request(recording, 5)
    assert (failed.recorded, failed.cause, failed.reason) == (False, "limit", "too_little")
    assert (failed.limit_bytes, failed.missing_bytes) == (512 * MiB, 88 * MiB)
    assert failed.allocated_bytes == 500 * MiB
    assert (failed.device_free_bytes, failed.limit_range_bytes) == (None, None)
    assert failed.at is not None
    assert failed.at.endswith("nine_blocks")
    assert found.reserved.reserved_bytes <= 512 * MiB
    assert found.peak.allocated_bytes == 900 * MiB  # the peak of the recording, which had no limit
    text = str(found)
    assert text.splitlines()[0] == (
        f"The program does not fit in 512.00 MiB: out of memory at event {failed.event}; at its "
        "peak it allocates 900.00 MiB, 388.00 MiB more."
    )
    assert f"Out of memory at event {failed.event}" in text
    assert found.fits_limit is False
    assert text.splitlines()[0] in found._repr_html_()


@pytest.mark.parametrize("limit", ["100MiB", "512MiB", "899MiB"])
def test_what_is_advised_under_a_limit_serves_all_and_saves_nothing_less_than_nothing(
    limit: str,
) -> None:
    found = explain(recorded(nine_blocks), limit=limit)
    assert found.advice
    for one in found.to_dict()["advice"]:
        assert one["saves_bytes"] == 0
        assert one["serves_failed_requests"]
    (raised,) = (one for one in found.advice if one.kind == "limit")
    assert raised.what == "raise the limit to 900.00 MiB, the least that serves all requests"
    (spilled,) = (one for one in found.advice if one.kind == "spill")
    assert spilled.peak_dedicated_bytes is not None
    assert spilled.peak_dedicated_bytes <= 900 * MiB
    assert "serves the request that failed" in str(found)


def test_fragments_that_a_limit_has_no_room_for_are_told() -> None:
    def program(allocator: Allocator) -> None:
        for block in with_holes(allocator):
            allocator.free(block)
        allocator.malloc("90MiB")

    found = explain(recorded(program, memory="2GiB"), limit="1080MiB", advice=False)
    (failed,) = found.out_of_memory
    assert (failed.recorded, failed.reason, failed.missing_bytes) == (False, "fragmentation", 0)
    assert "which would fit if no memory were lost." in " ".join(str(found).split())
    (pinned, *_) = found.fragmentation.pinned
    assert "test_explanation.py" in pinned.lines[0].line


def test_no_address_and_no_retry_is_made_up_under_a_limit() -> None:
    def program(allocator: Allocator) -> None:
        for block in with_holes(allocator):
            allocator.free(block)
        allocator.free(allocator.malloc("90MiB"))
        allocator.malloc("95MiB")

    recording = recorded(program, memory="2GiB")
    (pinned, *_) = explain(recording, advice=False).fragmentation.pinned
    assert pinned.address is not None
    went_back = "cached memory went back to the driver"
    nothing = explain(recording, limit="1040MiB", advice=False)
    assert nothing.num_alloc_retries == 1
    assert [failed.returned_bytes for failed in nothing.out_of_memory] == [0]
    assert went_back not in str(nothing)
    once = explain(recording, limit="1100MiB", advice=False)
    assert once.out_of_memory == []
    assert f"{went_back} once, when a request found no room" in str(once)
    for found in (nothing, once):
        assert found.fragmentation.pinned
        assert {segment.address for segment in found.fragmentation.pinned} == {None}
        assert " at 0x" not in str(found)


def test_a_limit_that_all_fits_in_is_said_to_be_one() -> None:
    recording = recorded(nine_blocks)
    found = explain(recording, limit="950MiB", advice=False)
    assert found.out_of_memory == []
    assert found.fits_limit
    assert str(found).startswith(
        "The program fits in 950.00 MiB: no more than 900.00 MiB is reserved."
    )
    assert "The program fits in 950.00 MiB" in found._repr_html_()
    assert explain(recording, advice=False).fits_limit is None


def test_a_higher_limit_serves_what_failed() -> None:
    recording = recorded(too_much_for_half_a_card)
    found = explain(recording, limit="1000MiB", advice=False)
    assert (found.out_of_memory, found.served_requests) == ([], 1)
    assert found.fits_limit
    # `peak` describes the recorded run, in which the request of 200 MiB failed.
    assert found.peak.allocated_bytes == 400 * MiB
    assert str(found).startswith("In 1000.00 MiB the requests that failed are served; what")
    (failed,) = explain(recording, limit="512MiB", advice=False).out_of_memory
    assert failed.recorded
    assert explain(recording, limit="512MiB", advice=False).fits_limit is False
    low = explain(recording, limit="300MiB", advice=False)
    assert [one.event for one in low.out_of_memory] == [request(recording, 0)]
    assert low.served_requests == 0


def test_advice_stays_on_the_card_that_was_full() -> None:
    def program(allocator: Allocator) -> None:
        for block in with_holes(allocator):
            allocator.free(block)
        fail(allocator, "90MiB")

    found = explain(recorded(program))
    assert found.advice
    for one in found.advice:
        assert one.serves_failed_requests
        assert (one.peak_dedicated_bytes or one.peak_reserved_bytes) <= 1024 * MiB
    assert "expandable_segments:True" in {one.how.partition("=")[2] for one in found.advice}


# --- advice --------------------------------------------------------------------------------------


TORCH = "/env/lib/python3.12/site-packages/torch/"
STACKS: dict[int, list[Frame]] = {
    1: [(TORCH + "nn/modules/module.py", 1370, "convert"), ("/w/train.py", 1, "main")],
    2: [(TORCH + "nn/modules/module.py", 1790, "_call_impl"), ("/w/train.py", 2, "main")],
    3: [(TORCH + "autograd/graph.py", 869, "_engine_run_backward"), ("/w/train.py", 3, "main")],
    4: [(TORCH + "optim/adam.py", 169, "_init_group"), ("/w/train.py", 4, "main")],
}


def training(*, zero_grad_late: bool) -> Recording:
    """Returns a recording of six training steps.

    Each step frees its gradients at its own end. If `zero_grad_late`, the next step frees them
    instead, after its forward pass.
    """
    program = Program()
    size, layers = 64 * MiB, 4
    for _ in range(layers):
        program.malloc(size, 1)
    gradients: list[int] = []
    marks = []
    for _ in range(6):
        hidden = [program.malloc(size, 2) for _ in range(layers)]
        for block in gradients:
            program.free(block)
        gradients = []
        for block in reversed(hidden):
            gradients.append(program.malloc(size, 3))
            program.free(block)
        program.free(program.malloc(512, 4))
        if not zero_grad_late:
            for block in gradients:
                program.free(block)
            gradients = []
        marks.append(Mark(len(program.events), 0, "step"))
    trace = program.trace()
    trace.frames = lambda stack: STACKS.get(stack, [])  # type: ignore[method-assign]
    return Recording("training", [trace], {}, marks)


def test_the_least_limit_is_what_the_program_then_takes() -> None:
    def program(allocator: Allocator) -> None:
        allocator.free(allocator.malloc("100MiB"))  # stays cached, too small for the next request
        allocator.malloc("101MiB")

    recording = recorded(program)
    found = explain(recording, advice=True)
    (advice,) = (one for one in found.advice if one.kind == "limit")
    assert "at most 102.00 MiB" in advice.what
    assert advice.peak_reserved_bytes == 102 * MiB
    assert replay(recording, limit=102 * MiB)[0].num_ooms == 0
    assert replay(recording, limit=101 * MiB)[0].num_ooms > 0


def test_an_earlier_zero_grad_is_tried_and_advised() -> None:
    found = explain(training(zero_grad_late=True))
    (advice,) = (one for one in found.advice if one.kind == "program")
    better = explain(training(zero_grad_late=False))
    assert advice.peak_reserved_bytes == better.reserved.reserved_bytes
    saved = found.reserved.reserved_bytes - better.reserved.reserved_bytes
    assert advice.saves_bytes == saved > 0
    assert not any(one.kind == "program" for one in better.advice)


def test_moving_the_frees_changes_nothing_else() -> None:
    from plimsoll.recordings.analysis.block_history import find_lifetimes
    from plimsoll.recordings.analysis.categories import find_categories
    from plimsoll.recordings.analysis.steps import find_steps

    recording = training(zero_grad_late=True)
    (trace,) = recording.devices
    found = find_lifetimes(trace)
    steps = find_steps(found, recording.marks)
    categories = find_categories(found, steps, trace.frames)
    edited = with_earlier_zero_grad(recording, found, steps, categories)
    assert edited is not None
    before, after = (find_lifetimes(one.devices[0]) for one in edited)
    assert sorted(before.size.tolist()) == sorted(after.size.tolist())
    assert len(before) == len(after)
    assert after.level().max() < before.level().max()
    early = training(zero_grad_late=False)
    (trace,) = early.devices
    found = find_lifetimes(trace)
    steps = find_steps(found, early.marks)
    categories = find_categories(found, steps, trace.frames)
    assert with_earlier_zero_grad(early, found, steps, categories) is None


def test_configurations_are_put_together_by_key() -> None:
    conf = "roundup_power2_divisions:[256:1,>:4], max_split_size_mb:64"
    assert list(conf_keys(conf)) == ["roundup_power2_divisions", "max_split_size_mb"]
    assert conf_text(conf_keys(conf) | conf_keys("max_split_size_mb:128")) == (
        "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:128"
    )
    assert conf_keys("") == {}
    assert _different([]) == []


def test_the_same_recording_gets_the_same_answer_however_slow_the_machine_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording = recorded(nine_blocks)
    usual = explain(recording)
    hours = itertools.count(0, 3600)
    for clock in ("monotonic", "perf_counter", "process_time", "time"):
        monkeypatch.setattr(time, clock, lambda: float(next(hours)))
    assert explain(recording).to_dict() == usual.to_dict()
    assert usual.tried > 10
    assert not usual.search_ended_early


def test_the_search_replays_no_more_events_than_it_may() -> None:
    recording = recorded(nine_blocks)
    (trace,) = recording.devices
    counts = [explain(recording, search_events=n * trace.event_count).tried for n in (1, 2, 5)]
    assert counts == [1, 2, 5]
    some = explain(recording, search_events=2 * trace.event_count)
    assert some.search_ended_early
    assert "(2 replays; --search-events ended the search early)" in str(some)
    too_few = explain(recording, search_events=trace.event_count - 1)
    assert (too_few.tried, too_few.advice, too_few.search_ended_early) == (0, [], True)
    assert f"a replay takes {trace.event_count} events" in str(too_few)
    of_one = replace(too_few, events=1)
    assert "a replay takes 1 event, and" in str(of_one)


def test_no_search_at_all_is_no_search_that_ended() -> None:
    recording = recorded(nine_blocks)
    none = explain(recording, search_events=0)
    assert none.to_dict() == explain(recording, advice=False).to_dict()
    assert (none.tried, none.search_ended_early) == (0, False)
    assert "Advice" not in str(none)
    with pytest.raises(InputError, match="cannot replay -1 events; 0 leaves it out"):
        explain(recording, search_events=-1)


# --- other sources, and edge cases ---------------------------------------------------------------


def snapshot_without_history() -> bytes:
    allocator = Allocator(SimulatedGpu("1GiB"))
    blocks = [allocator.malloc("30MiB") for _ in range(3)]
    allocator.free(blocks[1])
    allocator.free(blocks[2])
    allocator.malloc("12MiB")
    return pickle.dumps(allocator.memory_snapshot())


def test_a_running_process_without_a_history_shows_what_there_is_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = snapshot_without_history()
    monkeypatch.setattr(
        "plimsoll.base.telemetry.requests.request_snapshot", {4711: content}.__getitem__
    )
    found = explain(4711)
    assert found.file == "process 4711"
    assert found.reserved.exact
    assert found.reserved.allocated_bytes == 42 * MiB
    assert found.reserved.cached_bytes == 30 * MiB
    assert found.reserved.fragments_bytes == 18 * MiB
    assert found.fragmentation.largest_request_bytes == 30 * MiB
    assert found.tried == 0
    assert "there is no history" in str(found)


def test_a_foreign_file_is_told_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text('"""A program."""\n')
    with pytest.raises(InputError) as refused:
        read_recording(tmp_path / "script.py")
    for kind in ("script.py", ".pickle", ".pickle.gz", ".plim", ".parquet"):
        assert kind in str(refused.value)
    assert "opcode" not in str(refused.value)
    (tmp_path / "cut.pickle").write_bytes(snapshot_without_history()[:100])
    with pytest.raises(InputError, match=r"cut\.pickle: not a readable pickle: ."):
        read_recording(tmp_path / "cut.pickle")


def test_an_empty_process_is_refused() -> None:
    nothing = pickle.dumps(Allocator(SimulatedGpu("1GiB")).memory_snapshot())
    with pytest.raises(InputError, match="the history is empty"):
        read_snapshot(nothing, "process 1", needs_history=False)
    with pytest.raises(InputError, match="not a readable pickle"):
        read_snapshot(b"nonsense", "process 1", needs_history=False)


def test_the_device_in_use_the_most_is_explained() -> None:
    def program(size: str) -> LoadedTrace:
        (trace,) = recorded(lambda allocator: allocator.free(allocator.malloc(size))).devices
        assert isinstance(trace, LoadedTrace)
        return trace

    traces = [program("10MiB"), program("30MiB")]
    traces[1].device = 1
    both = Recording("both", list(traces))
    assert explain(both, advice=False).device == 1
    assert explain(both, advice=False, device=0).peak.allocated_bytes == 10 * MiB


def test_a_notebook_gets_tables() -> None:
    def program(allocator: Allocator) -> None:
        allocator.malloc("400MiB")
        fail(allocator, "900MiB")

    html = explained(program)._repr_html_()
    assert html.count("<table>") == html.count("</table>") >= 4
    assert "too little" in html


def test_one_of_something_is_said_in_the_singular() -> None:
    found = explained(lambda allocator: allocator.free(allocator.malloc("2MiB")))
    one = replace(found, events=1, steps=StepsFound(1, "marks", 1.0), tried=1)
    text = str(one)
    assert ": 1 event, 1 step (as marked)\n" in text
    assert "plimsoll found 1 step, and needs at least 8" in text
    assert "(1 replay)" in text
    two = str(replace(one, events=2000, steps=StepsFound(2, "marks", 1.0)))
    assert ": 2,000 events, 2 steps (as marked)\n" in two
