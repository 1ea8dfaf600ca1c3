"""Tests that plimsoll's snapshots have the form of PyTorch's.

PyTorch's viewer reads them, and a replay of a snapshot matches what the snapshot recorded.
"""

from __future__ import annotations

import gzip
import pickle
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import (
    Allocator,
    InputError,
    OutOfMemoryError,
    ReplayResult,
    SimulatedGpu,
    _core,
    replay,
)
from plimsoll.base.units import MiB
from plimsoll.recordings.snapshot_reader import read_snapshot
from tests.recordings import SMALL
from tests.unit.random_programs import (
    EmptyCache,
    Free,
    Malloc,
    Program,
    RecordStream,
    ReleasePool,
    Step,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFS = [
    "",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:32,max_non_split_rounding_mb:40",
]


# The configurations for random programs in which requests may fail. They leave out max_split_size:
# with it, the effects of a failed request depend on the frees before that request. The last test of
# this file covers such a case.
WITHOUT_OVERSIZE = [conf for conf in CONFS if "max_split" not in conf]

Snapshot = dict[str, Any]


def recorded(
    program: list[Step], conf: str = "", *, fraction: float = 1, max_entries: int = 1_000_000
) -> Snapshot:
    allocator = Allocator(SimulatedGpu("4GiB"), conf=conf)
    allocator.set_per_process_memory_fraction(fraction)
    allocator.record_memory_history(max_entries=max_entries)
    Program(allocator).run(program)
    return allocator.memory_snapshot()


def replayed(snapshot: Snapshot, limit: int | None = None) -> ReplayResult:
    (result,) = replay(read_snapshot(pickle.dumps(snapshot)), limit=limit)
    return result


def asks_for_memory(snapshot: Snapshot) -> bool:
    return any(event["action"] == "alloc" for event in snapshot["device_traces"][0])


def used_allocator() -> Allocator:
    """Returns an allocator whose snapshot has every kind of entry."""
    allocator = Allocator(SimulatedGpu("1GiB"))
    allocator.record_memory_history(stacks=True)
    kept = [allocator.malloc(size) for size in (1, 4096, 3 * MiB, 90 * MiB, 12 * MiB)]
    allocator.free(kept[3])
    allocator.empty_cache()
    allocator.free(kept[0])
    with pytest.raises(OutOfMemoryError):
        allocator.malloc("2GiB")
    with allocator.use_pool(allocator.make_pool()):
        allocator.malloc("2MiB", stream=7)
    allocator.record_stream(kept[2], 7)
    allocator.gpu.launch(7, seconds=1)
    allocator.free(kept[2])
    allocator.memory_snapshot()
    return allocator


# --- the format ----------------------------------------------------------------------------------


def keys_and_types(rows: list[dict[str, Any]]) -> set[tuple[tuple[str, type], ...]]:
    return {tuple(sorted((key, type(value)) for key, value in row.items())) for row in rows}


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise AssertionError(f"{module}.{name} is not plain data")


def test_it_has_the_form_that_pytorch_recorded() -> None:
    with gzip.open(SMALL / "limited.default.pickle.gz") as file:
        theirs = _PlainData(file).load()
    ours = used_allocator().memory_snapshot()
    assert ours.pop("host_segments") == ours.pop("host_traces") == []  # new in 2.14
    assert set(ours) == set(theirs)
    assert keys_and_types(ours["segments"]) == keys_and_types(theirs["segments"])
    blocks, their_blocks = (
        [block for segment in snapshot["segments"] for block in segment["blocks"]]
        for snapshot in (ours, theirs)
    )
    assert keys_and_types(blocks) == keys_and_types(their_blocks)
    states = {block["state"] for block in blocks}
    assert states == {"active_allocated", "active_pending_free", "inactive"}
    settings, their_settings = ours["allocator_settings"], theirs["allocator_settings"]
    assert settings["roundup_power2_divisions"] == their_settings["roundup_power2_divisions"]
    assert settings.pop("allocator") == "native"
    assert settings.pop("torch_version") == _core.NEWEST_VERSION
    assert settings.items() <= their_settings.items()

    by_action = {event["action"]: event for event in theirs["device_traces"][0]}
    # Our events also have `pool_id`, which is new in PyTorch 2.12, and `frames`, because only our
    # history was recorded with stacks.
    newer = {"pool_id": tuple, "frames": list}
    for event in ours["device_traces"][0]:
        if event["action"] in by_action:
            expected = {key: type(value) for key, value in by_action[event["action"]].items()}
            assert {key: type(value) for key, value in event.items()} == expected | newer


def test_pinned_memory_has_a_place_from_2_14_on() -> None:
    for version, has_place in (("2.13", False), ("2.14", True)):
        snapshot = Allocator(SimulatedGpu("1GiB"), version=version).memory_snapshot()
        assert ("host_segments" in snapshot, "host_traces" in snapshot) == (has_place, has_place)


def test_what_newer_versions_add_changes_no_replay() -> None:
    snapshot = used_allocator().memory_snapshot()
    before = read_snapshot(pickle.dumps(snapshot))
    (events,) = snapshot["device_traces"]
    for place in (len(events), 1, 0):
        remark = {"action": "annotate", "addr": 0x1000, "size": 5, "stream": 0, "frames": []}
        events.insert(place, remark | {"user_metadata": "saved for backward"})
    events[2]["internal_metadata"] = "mallocWithAddress"
    host = {"address": 4096, "size": 512, "allocated": True, "active": True, "frames": []}
    snapshot["host_segments"] = [host]
    snapshot["host_traces"] = [{"action": "segment_alloc", "addr": 4096, "size": 512, "stream": 0}]
    after = read_snapshot(pickle.dumps(snapshot))
    (old,), (new,) = before.devices, after.devices
    assert old.event_count == new.event_count
    assert np.array_equal(old.load().address, new.load().address)
    ((result,), (expected,)) = replay(after), replay(before)
    assert result.matches_recording is expected.matches_recording is True
    assert result.memory_stats == expected.memory_stats


def test_a_recording_tells_which_version_to_replay_it_by() -> None:
    def version(snapshot: Snapshot) -> str:
        return read_snapshot(pickle.dumps(snapshot)).version

    ours = Allocator(SimulatedGpu("1GiB"), version="2.12")
    ours.record_memory_history()
    ours.malloc(512)
    snapshot = ours.memory_snapshot()
    assert version(snapshot) == "2.12"
    del snapshot["allocator_settings"]["torch_version"]  # not in PyTorch's own snapshots
    assert version(snapshot) == "2.13"
    assert version(snapshot | {"host_segments": []}) == _core.NEWEST_VERSION
    for event in snapshot["device_traces"][0]:
        del event["pool_id"]
    assert version(snapshot) == "2.11"
    (result,) = replay(read_snapshot(pickle.dumps(snapshot)))
    assert result.version == "2.11"
    snapshot["allocator_settings"]["torch_version"] = "2.99.1"
    assert version(snapshot) == _core.NEWEST_VERSION


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_is_read_alike(protocol: int) -> None:
    snapshot = used_allocator().memory_snapshot()
    recording = read_snapshot(pickle.dumps(snapshot, protocol=protocol))
    (trace,) = recording.devices
    (batch,) = trace.batches()
    events = snapshot["device_traces"][0]
    assert batch.size.tolist() == [event["size"] for event in events]
    assert batch.address.tolist() == [e.get("addr", e.get("device_free", 0)) for e in events]
    assert batch.stream.tolist() == [event["stream"] for event in events]
    assert trace.frames(int(batch.stack[0]))[0][2] == events[0]["frames"][0]["name"]
    assert [segment.address for segment in trace.segments] == [
        segment["address"] for segment in snapshot["segments"]
    ]
    assert recording.settings == snapshot["allocator_settings"]


@pytest.mark.parametrize(
    "found", [{"limits": 5}, {"limits": {"0": 5}}, {"limits": {"0": ["1"]}}, {"process": 5}]
)
def test_impossible_settings_are_refused(found: dict[str, Any]) -> None:
    snapshot = used_allocator().memory_snapshot()
    snapshot["allocator_settings"] |= found
    with pytest.raises(InputError, match="snapshot: "):
        read_snapshot(pickle.dumps(snapshot))


def test_a_dumped_file_is_plain_data_and_is_never_overwritten(tmp_path: Path) -> None:
    allocator = used_allocator()
    path = tmp_path / "snapshot.pickle"
    allocator.dump_snapshot(path)
    before = path.read_bytes()
    with path.open("rb") as file:
        loaded = _PlainData(file).load()
    assert loaded["segments"] == allocator.memory_snapshot()["segments"]
    with pytest.raises(InputError, match="exists already"):
        allocator.dump_snapshot(path)
    assert path.read_bytes() == before
    assert replay(path)[0].matches_recording is True


# --- PyTorch's viewer ----------------------------------------------------------------------------


def flames(text: str) -> int:
    """Returns the sum of bytes over all lines of flame graph input."""
    return sum(int(line.rpartition(" ")[2]) for line in text.splitlines())


VIEWS: dict[str, Callable[[Any, Snapshot], Any]] = {
    "trace_plot": lambda viewer, snapshot: viewer.trace_plot(snapshot),
    "trace_plot of segments": lambda viewer, snapshot: viewer.trace_plot(
        snapshot, plot_segments=True
    ),
    "segment_plot": lambda viewer, snapshot: viewer.segment_plot(snapshot),
}


@pytest.fixture
def viewer() -> Any:
    return pytest.importorskip("torch.cuda._memory_viz")


@pytest.mark.parametrize("view", VIEWS)
def test_the_viewers_pages_take_it(viewer: Any, view: str) -> None:
    page = VIEWS[view](viewer, used_allocator().memory_snapshot())
    assert '"name": "snapshot.pickle"' in page


def test_the_viewers_totals_are_the_allocators(viewer: Any) -> None:
    allocator = used_allocator()
    snapshot = allocator.memory_snapshot()
    requested = sum(
        block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    summary = viewer.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}\n" in summary
    assert f"total_reserved: {viewer.Bytes(allocator.memory_reserved())}\n" in summary
    assert f"total_allocated: {viewer.Bytes(requested)}\n" in summary
    for draw in (viewer.memory, viewer.segments):  # both return the input of a flame graph
        text = draw(snapshot, format_flamegraph=str)
        assert flames(text) == allocator.memory_reserved()
        assert "used_allocator" in text


def test_the_viewer_tells_the_story_of_the_trace(viewer: Any) -> None:
    snapshot = used_allocator().memory_snapshot()
    lines = viewer.trace(snapshot).splitlines()
    events = snapshot["device_traces"][0]
    assert lines[:2] == ["Device 0 ----------------", f"{len(events)} entries"]
    assert len(lines) == len(events) + 3
    (oom,) = [event for event in events if event["action"] == "oom"]
    free = viewer.Bytes(oom["device_free"])
    assert f"raise OutOfMemoryError # 2.0GiB requested, {free} free in CUDA" in lines


def test_the_viewer_compares_two_moments(viewer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = used_allocator()
    before = allocator.memory_snapshot()["segments"]
    allocator.malloc("300MiB")
    after = allocator.memory_snapshot()["segments"]
    (new,) = [segment for segment in after if segment["total_size"] == 300 * MiB]
    text = viewer.compare(before, after, format_flamegraph=str)
    assert flames(text) == 300 * MiB
    assert capsys.readouterr().out == f"only_before = []\nonly_after = [{new['address']}]\n"


def test_the_viewer_pairs_each_request_with_its_free(
    viewer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = used_allocator().memory_snapshot()
    left = viewer.filter_alloc_free_pairs(snapshot)["device_traces"][0]
    assert capsys.readouterr().out == ""
    assert [event["size"] for event in left if event["action"] == "alloc"] == [
        4096,
        12 * MiB,
        2 * MiB,
    ]


# --- round trip: a recording replays here --------------------------------------------------------


@pytest.mark.parametrize("conf", CONFS)
@given(program=st.lists(steps(), min_size=1, max_size=60))
def test_a_recorded_program_replays_to_the_address(conf: str, program: list[Step]) -> None:
    snapshot = recorded(program, conf)
    if asks_for_memory(snapshot):
        result = replayed(snapshot)
        assert result.first_difference is None
        assert result.matches_recording is True


@pytest.mark.parametrize("conf", WITHOUT_OVERSIZE)
@given(program=st.lists(steps(), min_size=20, max_size=80))
def test_so_does_one_that_runs_out_of_memory(conf: str, program: list[Step]) -> None:
    snapshot = recorded(program, conf, fraction=1 / 32)
    if asks_for_memory(snapshot):
        result = replayed(snapshot, limit=128 * MiB)
        assert result.matches_recording is True
        ooms = [event for event in snapshot["device_traces"][0] if event["action"] == "oom"]
        assert result.num_ooms == len(ooms)


def set_apart(program: list[Step]) -> list[Step]:
    """Adds a 1-byte request after each step that empties the cache."""
    return [
        part
        for step in program
        for part in ([step, Malloc(1)] if isinstance(step, EmptyCache | ReleasePool) else [step])
    ]


@pytest.mark.parametrize("conf", WITHOUT_OVERSIZE)
@given(program=st.lists(steps(pools=True, empty_cache=True), min_size=20, max_size=80))
def test_so_does_one_with_pools_that_empties_the_cache(conf: str, program: list[Step]) -> None:
    snapshot = recorded(set_apart(program), conf, fraction=1 / 16)
    if asks_for_memory(snapshot):
        assert replayed(snapshot, limit=256 * MiB).matches_recording is True


@pytest.mark.xfail(strict=True, reason="what is emptied in two steps is replayed as one")
def test_caches_that_are_emptied_one_after_the_other_are_told_apart() -> None:
    allocator = Allocator(SimulatedGpu("1GiB"))
    allocator.record_memory_history()
    pools = [allocator.make_pool() for _ in range(2)]
    for pool in pools:
        with allocator.use_pool(pool):
            allocator.free(allocator.malloc(1))
    allocator.free(allocator.malloc(1))
    for pool in reversed(pools):
        pool.release()
    assert replayed(allocator.memory_snapshot()).matches_recording is True


@given(program=st.lists(steps(), min_size=20, max_size=80), kept=st.integers(1, 60))
def test_a_ring_that_overflowed_still_replays(program: list[Step], kept: int) -> None:
    snapshot = recorded(program, "expandable_segments:True", max_entries=kept)
    if snapshot["device_traces"][0]:
        assert replayed(snapshot).matches_recording is not False


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_an_address_that_went_from_pool_to_pool_is_told_apart(conf: str) -> None:
    allocator = Allocator(SimulatedGpu("1GiB"), conf=conf)
    allocator.record_memory_history()
    first, second = allocator.make_pool(), allocator.make_pool()
    with allocator.use_pool(first):
        allocator.free(allocator.malloc("30MiB"))
    first.release()
    allocator.empty_cache()
    with allocator.use_pool(second):
        allocator.malloc("30MiB")
    snapshot = allocator.memory_snapshot()
    (trace,) = read_snapshot(pickle.dumps(snapshot)).devices
    (batch,) = trace.batches()
    named = [event["pool_id"] for event in snapshot["device_traces"][0]]
    read = zip(batch.pool_first.tolist(), batch.pool_second.tolist(), strict=True)
    assert list(read) == named


def test_a_free_that_another_stream_delayed_serves_the_request_that_is_refused() -> None:
    big, cached, request = Malloc(64 * MiB, stream=2), Malloc(2 * MiB), Malloc(46 * MiB, stream=2)
    program: list[Step] = [big, cached, RecordStream(0, stream=0), Free(0), Free(0), request]
    snapshot = recorded(program, "max_split_size_mb:64", fraction=1 / 32)
    assert replayed(snapshot, limit=128 * MiB).matches_recording is True
