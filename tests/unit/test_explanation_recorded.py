"""Tests `explain` for allocators other than PyTorch's, whose state comes from recorded events."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plimsoll import Allocator, OutOfMemoryError, SimulatedGpu, SimulatedMachine
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.replays.replay import replay
from plimsoll.explanation.explain import explain
from plimsoll.explanation.explanation import Explanation
from plimsoll.explanation.oom import explain_failure
from plimsoll.explanation.pieces import free_bytes, granules, wholly_free_bytes
from plimsoll.explanation.recorded_state import RecordedPast
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.parquet import write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from plimsoll.recordings.snapshot_reader import read_snapshot
from plimsoll.torch.session.record import record

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll import _core


def churn(allocator: Allocator, rounds: int, seed: int = 1) -> list[int]:
    """Requests many sizes on two streams and frees half of them at random. Returns the rest."""
    dice = random.Random(seed)
    live: list[int] = []
    for _ in range(rounds):
        if live and dice.random() < 0.45:
            allocator.free(live.pop(dice.randrange(len(live))))
        else:
            size = dice.choice([1000, 70_000, 3 * MiB, 20 * MiB, 1 + dice.randrange(30 * MiB)])
            live.append(allocator.malloc(size, stream=dice.choice([0, 0, 7])))
    return live


def elastic(memory: str = "4GiB") -> Allocator:
    return Allocator(SimulatedGpu(memory), allocator="elastic")


def past_of(recording: Recording) -> RecordedPast:
    (trace,) = recording.devices
    return RecordedPast(trace, find_lifetimes(trace), recording.allocator, "", "2.13")


def test_a_range_beyond_any_card_is_not_cut_into_granules() -> None:
    assert list(granules(MiB, 5 * MiB)) == [
        (MiB, 2 * MiB), (3 * MiB, 2 * MiB), (5 * MiB, MiB)
    ]  # fmt: skip
    assert len(list(granules(0, 256 * GiB))) == 1 << 17
    assert list(granules(0, 256 * GiB + 1)) == [(0, 256 * GiB + 1)]


Row = tuple[int, int, str]


def state(segments: list[_core.SegmentInfo]) -> list[tuple[int, int, int, list[Row]]]:
    """Returns the places of segments and blocks; adjacent free blocks count as one."""
    found = []
    for segment in segments:
        rows: list[Row] = []
        for block in segment.blocks:
            if rows and block.state == rows[-1][2] == "inactive":
                rows[-1] = (rows[-1][0], rows[-1][1] + block.size, "inactive")
            else:
                rows.append((block.address, block.size, block.state))
        found.append((segment.address, segment.total_size, segment.stream, rows))
    return found


def test_the_state_is_that_of_the_allocator(tmp_path: Path) -> None:
    allocator = elastic()
    with record(tmp_path / "run.plim", allocator=allocator):
        churn(allocator, 400)
    past = past_of(read_recording(tmp_path / "run.plim"))
    last = past.trace.event_count - 1
    assert state(past.after(last)) == state(allocator.engine.segments())
    units = past.units(last)
    fragments = sum(map(free_bytes, units)) - sum(map(wholly_free_bytes, units))
    assert fragments == allocator.engine.fragments_bytes()
    stats = allocator.memory_stats()
    assert past.peak.reserved_bytes == stats["reserved_bytes.all.peak"]
    assert past.is_exact


def recorded(allocator: Allocator, folder: Path, rounds: int = 300) -> Recording:
    with record(folder / "run.plim", allocator=allocator):
        churn(allocator, rounds)
    return read_recording(folder / "run.plim")


def test_what_the_elastic_allocator_did_is_told(tmp_path: Path) -> None:
    allocator = elastic()
    found = explain(recorded(allocator, tmp_path))
    stats = allocator.memory_stats()
    r = found.reserved
    assert found.allocator == "elastic"
    assert r.exact
    assert r.reserved_bytes == found.card.reserved_bytes == stats["reserved_bytes.all.peak"]
    assert found.peak.allocated_bytes == stats["allocated_bytes.all.peak"]
    assert r.allocated_bytes + r.pending_bytes + r.cached_bytes + r.fragments_bytes == (
        r.reserved_bytes
    )
    assert found.fragmentation.free_bytes == r.cached_bytes + r.fragments_bytes
    assert found.fragmentation.movable_bytes == r.cached_bytes
    assert found.fragmentation.largest_request_bytes is None
    assert all("test_explanation_recorded.py" in line.line
               for segment in found.fragmentation.pinned for line in segment.lines)  # fmt: skip
    text = str(found)
    assert "reserved by plimsoll's elastic allocator, at its peak" in text
    assert "PyTorch's allocator" not in text
    assert found.notes == []


def test_what_is_on_already_is_no_advice(tmp_path: Path) -> None:
    found = explain(recorded(elastic(), tmp_path))
    assert found.tried
    assert not {"setting", "elastic"} & {one.kind for one in found.advice}


def test_every_kind_of_file_names_the_allocator(tmp_path: Path) -> None:
    allocator = elastic()
    allocator.record_memory_history()
    recording = recorded(allocator, tmp_path)
    write_parquet(recording, tmp_path / "run.parquet")
    snapshot = read_snapshot(pickle.dumps(allocator.memory_snapshot()))
    for one in (recording, read_recording(tmp_path / "run.parquet"), snapshot):
        assert one.allocator == "elastic"
    reserved = explain(recording, advice=False).reserved
    told = explain(snapshot, advice=False).reserved
    # The recording and the snapshot describe the same memory. Only `event` (the number of the event
    # at which the memory is described) differs, because taking the snapshot is one more event.
    assert replace(told, event=reserved.event) == reserved
    assert Recording("of PyTorch", []).allocator == "native"


def test_a_history_that_begins_late_is_told_with_its_unknown(tmp_path: Path) -> None:
    allocator = elastic()
    churn(allocator, 200)
    reserved = allocator.memory_stats()["reserved_bytes.all.current"]
    found = explain(recorded(allocator, tmp_path), advice=False)
    assert found.reserved.reserved_bytes >= reserved
    assert found.reserved.reserved_bytes == allocator.memory_stats()["reserved_bytes.all.peak"]
    assert not found.reserved.exact
    assert "pieces of unknown size" in " ".join(found.notes)


def test_a_limit_is_replayed_for_a_recording_that_starts_late(tmp_path: Path) -> None:
    allocator = elastic()
    churn(allocator, 200)
    found = explain(recorded(allocator, tmp_path), limit="100MiB")
    assert str(found).startswith(
        "The program does not fit in 100.00 MiB: out of memory at event 0; "
    )
    assert found.advice[0].kind == "limit"
    notes = " ".join(found.notes)
    assert "under the given limit reserved memory follows the allocator's rules" in notes
    assert "the recording starts late" in notes


def test_a_limit_that_cannot_be_replayed_is_answered_as_far_as_can_be(tmp_path: Path) -> None:
    allocator = elastic()
    churn(allocator, 200)
    recording = recorded(allocator, tmp_path)
    recording = replace(recording, settings={**recording.settings, "allocator": "another"})
    found = explain(recording, limit="100MiB")
    assert str(found).startswith("The program does not fit in 100.00 MiB: ")
    assert found.reserved == explain(recording, advice=False).reserved
    assert "the effect of the given limit is not known" in " ".join(found.notes)


def test_an_allocator_that_keeps_nothing_is_told(tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("4GiB"), allocator="uncached")
    found = explain(recorded(allocator, tmp_path))
    assert found.allocator == "uncached"
    assert found.reserved.reserved_bytes == allocator.memory_stats()["reserved_bytes.all.peak"]
    assert found.reserved.cached_bytes == found.reserved.fragments_bytes == 0


def test_shared_memory_is_not_on_the_card(tmp_path: Path) -> None:
    machine = SimulatedMachine(["1GiB"], host_memory="8GiB")
    allocator = Allocator(machine.gpus[0], allocator="elastic", policy="spill")
    with record(tmp_path / "run.plim", allocator=allocator):
        for _ in range(15):
            allocator.malloc("100MiB")
    found = explain(tmp_path / "run.plim")
    assert found.reserved.shared_bytes > 400 * MiB
    assert found.card.reserved_bytes <= GiB < found.reserved.reserved_bytes
    assert "of it in shared memory" in str(found)
    assert "spill" not in {one.kind for one in found.advice}


# --- requests that failed ------------------------------------------------------------------------


def failing(allocator: Allocator, folder: Path, size: str) -> tuple[OutOfMemoryError, Explanation]:
    """Makes 20 blocks of 50 MiB, frees every second one, and explains a request that fails."""
    with record(folder / "run.plim", allocator=allocator):
        blocks = [allocator.malloc("50MiB") for _ in range(20)]
        for block in blocks[::2]:
            allocator.free(block)
        with pytest.raises(OutOfMemoryError) as failed:
            allocator.malloc(size)
    return failed.value, explain(folder / "run.plim")


def test_a_full_card_is_told_as_the_error_says(tmp_path: Path) -> None:
    error, found = failing(elastic("1GiB"), tmp_path, "600MiB")
    (failed,) = found.out_of_memory
    assert (failed.cause, failed.reason) == ("card", "too_little")
    assert failed.allocated_bytes == error.allocated_bytes == 500 * MiB
    assert failed.reserved_bytes == error.reserved_bytes
    assert failed.device_free_bytes == error.free_bytes
    assert failed.missing_bytes == 1100 * MiB - GiB
    assert all(one.serves_failed_requests for one in found.advice)


def limited(name: str, limit: float = 0.5) -> Allocator:
    allocator = Allocator(SimulatedGpu("4GiB"), allocator=name)  # type: ignore[arg-type]
    allocator.set_per_process_memory_fraction(limit)
    return allocator


@pytest.mark.parametrize("name", ["native", "elastic"])
def test_a_limit_that_refused_is_to_be_raised_as_far_as_need_be(name: str, tmp_path: Path) -> None:
    _, found = failing(limited(name, 0.3), tmp_path, "900MiB")
    (failed,) = found.out_of_memory
    assert failed.cause == "limit"
    (advice,) = (one for one in found.advice if one.kind == "limit")
    assert advice.serves_failed_requests
    assert advice.what.startswith("raise the limit to")
    assert advice.peak_reserved_bytes <= 1900 * MiB
    assert "set_per_process_memory_fraction" in advice.how
    # Without the leak, the program needs no higher limit.
    assert [one.kind for one in found.advice] == ["leak", "limit", "spill"]
    assert all(one.serves_failed_requests for one in found.advice)


@pytest.mark.parametrize("name", ["native", "elastic", "uncached"])
def test_a_higher_limit_serves_what_failed(name: str, tmp_path: Path) -> None:
    failing(limited(name, 0.3), tmp_path, "900MiB")
    found = explain(tmp_path / "run.plim", limit="2GiB", advice=False)
    assert (found.out_of_memory, found.served_requests) == ([], 1)
    (failed,) = explain(tmp_path / "run.plim", limit="1.2GiB", advice=False).out_of_memory
    assert (failed.recorded, failed.cause) == (True, "limit")


def test_a_limit_is_not_raised_beyond_the_card(tmp_path: Path) -> None:
    _, found = failing(limited("native", 0.3), tmp_path, "5GiB")
    assert "limit" not in {one.kind for one in found.advice}


@pytest.mark.parametrize("name", ["elastic", "uncached"])
def test_a_limit_below_the_peak_tells_where_memory_runs_out(name: str, tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("4GiB"), allocator=name)  # type: ignore[arg-type]
    with record(tmp_path / "run.plim", allocator=allocator):
        blocks = [allocator.malloc("50MiB") for _ in range(20)]
        for block in blocks[::2]:
            allocator.free(block)
        allocator.malloc("300MiB")
    found = explain(tmp_path / "run.plim", limit="700MiB")
    (failed,) = found.out_of_memory
    assert (failed.recorded, failed.cause, failed.reason) == (False, "limit", "too_little")
    assert failed.asked_bytes == 50 * MiB
    assert failed.allocated_bytes == 700 * MiB
    assert found.reserved.reserved_bytes <= 700 * MiB
    assert "went back to the driver" not in str(found)  # no free memory was cached
    assert found.peak.allocated_bytes == 1000 * MiB
    assert str(found).startswith(
        f"The program does not fit in 700.00 MiB: out of memory at event {failed.event}; at"
    )
    assert found.advice
    assert all(one.serves_failed_requests and one.saves_bytes >= 0 for one in found.advice)
    fits = explain(tmp_path / "run.plim", limit="1GiB", advice=False)
    assert fits.out_of_memory == []
    assert fits.reserved == explain(tmp_path / "run.plim", advice=False).reserved


def test_a_limit_makes_no_fragments_of_the_elastic_allocator_cached(tmp_path: Path) -> None:
    with record(tmp_path / "run.plim", allocator=(allocator := elastic())):
        blocks = [allocator.malloc((3 + number % 19) * 1_000_000) for number in range(100)]
        for block in blocks[::2]:
            allocator.free(block)
        for _ in range(20):
            allocator.malloc(40_000_000)
    taken = explain(tmp_path / "run.plim", advice=False).reserved.reserved_bytes
    found = explain(tmp_path / "run.plim", advice=False, limit=taken)
    assert found.fits_limit
    pinned = found.fragmentation.pinned_segments
    assert pinned > 90
    assert found.reserved.fragments_bytes > pinned * MiB
    assert found.reserved.cached_bytes == found.fragmentation.movable_bytes
    free = found.reserved.cached_bytes + found.reserved.fragments_bytes
    assert free == found.fragmentation.free_bytes


# --- replays that differ from the recording ------------------------------------------------------


def test_where_the_replay_differs_the_recording_is_told() -> None:
    allocator = Allocator(SimulatedGpu("4GiB"), conf="roundup_power2_divisions:2")
    allocator.record_memory_history(stacks=True)
    churn(allocator, 300)
    recording = read_snapshot(pickle.dumps(allocator.memory_snapshot()))
    other = Recording("other", recording.devices, {"PYTORCH_CUDA_ALLOC_CONF": ""})
    found = explain(other, advice=False)
    assert found.reserved.reserved_bytes == allocator.memory_stats()["reserved_bytes.all.peak"]
    assert not found.reserved.exact
    assert found.fragmentation.largest_request_bytes is None
    assert found.num_alloc_retries is None
    assert any("Reserved memory and its parts are as recorded" in note for note in found.notes)


def test_what_was_returned_for_a_request_is_told_from_the_recording(tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("1GiB"))
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.free(allocator.malloc("300MiB"))
        allocator.malloc("600MiB")
        with pytest.raises(OutOfMemoryError):
            allocator.malloc("500MiB")
    recording = read_recording(tmp_path / "run.plim")
    (trace,) = recording.devices
    past = RecordedPast(trace, find_lifetimes(trace), "native", "", "2.13")
    (event,) = past.failures()
    told = explain_failure(past, event, None, str)
    (replayed,) = explain(recording, advice=False).out_of_memory
    assert told.returned_bytes == 300 * MiB
    assert told == replace(replayed, at=told.at)


def test_a_peak_that_lasts_is_told_at_its_moment_with_the_most_live_memory(
    tmp_path: Path,
) -> None:
    allocator = Allocator(SimulatedGpu("4GiB"))
    with record(tmp_path / "run.plim", allocator=allocator):
        for block in [allocator.malloc("100MiB") for _ in range(8)]:
            allocator.free(block)
        allocator.malloc("20MiB", stream=7)  # reserves the last part while little is live
        live = [allocator.malloc("90MiB") for _ in range(8)]
        allocator.free(live.pop())
        allocator.malloc("60MiB")
    found = explain(tmp_path / "run.plim", advice=False)
    assert found.reserved.reserved_bytes == 820 * MiB
    assert found.reserved.allocated_bytes == 740 * MiB
    assert "Live tensors take 740.00 MiB of it; 80.00 MiB" in str(found).splitlines()[0]
    recording = read_recording(tmp_path / "run.plim")
    (trace,) = recording.devices
    past = RecordedPast(trace, find_lifetimes(trace), "native", "", "2.13")
    assert past.peak.event == found.reserved.event
    under = explain(tmp_path / "run.plim", limit="3GiB", advice=False)
    (replayed,) = replay(tmp_path / "run.plim")
    assert under.reserved == found.reserved
    assert replayed.peak.event == found.reserved.event
    assert past.peak.requested_bytes == 740 * MiB


# --- snapshots without a history, and short searches --------------------------------------------


@pytest.mark.parametrize("name", ["native", "elastic"])
def test_a_snapshot_without_a_history_says_what_there_is_now(name: str, tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("1GiB"), allocator=name)  # type: ignore[arg-type]
    blocks = [allocator.malloc("30MiB") for _ in range(3)]
    allocator.free(blocks[1])
    allocator.malloc("12MiB")
    allocator.dump_snapshot(tmp_path / "now.pickle")
    found = explain(tmp_path / "now.pickle")
    assert not found.has_history
    assert found.reserved.allocated_bytes == 72 * MiB
    assert found.reserved.cached_bytes + found.reserved.fragments_bytes == 18 * MiB
    assert found.tried == 0
    text = str(found)
    assert text.startswith(
        "Now the program reserves 90.00 MiB. Live tensors take 72.00 MiB of it; "
    )
    assert "no history" in text.splitlines()[2]
    assert "plimsoll run --record" in text
    assert "Live now: 72.00 MiB allocated in 3 blocks" in text
    assert "peak" not in text.partition("note:")[0]


def test_a_search_that_may_replay_too_little_is_said(tmp_path: Path) -> None:
    recording = recorded(elastic(), tmp_path)
    assert "Advice: nothing was tried" in str(explain(recording, search_events=1))
    assert "Advice" not in str(explain(recording, advice=False))
