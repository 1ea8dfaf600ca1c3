"""Tests reading and writing recordings: every pickle protocol, Parquet, and hostile bytes."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll import Allocator, InputError, ReplayResult, SimulatedGpu, replay
from plimsoll.recordings.events import COLUMNS, EventBatch
from plimsoll.recordings.parquet import TraceWriter, write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Mark, Recording
from plimsoll.recordings.snapshot_reader import read_snapshot
from tests.recordings import EXAMPLES, SMALL

if TYPE_CHECKING:
    from pathlib import Path

SMALLEST = SMALL / "graph_streams.default.pickle.gz"


def plain(path: Path) -> Any:
    """Reads a file with Python's own pickle. This is safe: the files belong to this project."""
    with gzip.open(path) as file:
        return pickle.load(file)


def events(recording: Recording, device: int = 0) -> EventBatch:
    batches = list(recording.devices[device].batches())
    return EventBatch.of(
        {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in COLUMNS}
    )


def outcome(result: ReplayResult) -> dict[str, Any]:
    facts = result.to_dict()
    for key in ("file", "engine_seconds"):
        del facts[key]
    return facts


def test_columns_hold_what_the_pickle_holds() -> None:
    path = SMALL / "streams.default.pickle.gz"
    batch = events(read_recording(path))
    trace = plain(path)["device_traces"][0]
    assert batch.address.tolist() == [entry["addr"] for entry in trace]
    assert batch.size.tolist() == [entry["size"] for entry in trace]
    assert batch.stream.tolist() == [entry["stream"] for entry in trace]
    assert batch.time_us.tolist() == [entry["time_us"] for entry in trace]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_reads_the_same(protocol: int) -> None:
    recording = read_snapshot(pickle.dumps(plain(SMALLEST), protocol))
    assert outcome(replay(recording)[0]) == outcome(replay(SMALLEST)[0])


def test_every_device_of_a_file_is_replayed() -> None:
    snapshot = plain(SMALLEST)
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"] = [trace, [], copy.deepcopy(trace)]
    snapshot["segments"] += [
        {**segment, "device": 2} for segment in copy.deepcopy(snapshot["segments"])
    ]
    results = replay(read_snapshot(pickle.dumps(snapshot)))
    assert [result.device for result in results] == [0, 2]
    assert all(result.matches_recording for result in results)


def test_pools_that_newer_versions_record_are_used() -> None:
    snapshot = plain(SMALL / "pool_on_oom.default.pickle.gz")
    recording = read_snapshot(pickle.dumps(snapshot))
    named = events(recording)
    for entry, first, second in zip(
        snapshot["device_traces"][0], named.pool_first, named.pool_second, strict=True
    ):
        entry["pool_id"] = (int(first), int(second))
    assert named.pool_first.any() or named.pool_second.any()
    # Replays under the rules of the PyTorch version that made the recording.
    (result,) = replay(read_snapshot(pickle.dumps(snapshot)), version="2.11")
    assert result.matches_recording is True


@pytest.mark.parametrize(
    "name", ["streams.limited", "ring.default", "late_start.expandable", "churn.gc60"]
)
def test_parquet_replays_like_the_snapshot(name: str, tmp_path: Path) -> None:
    path = SMALL / f"{name}.pickle.gz"
    write_parquet(read_recording(path), tmp_path / "trace.parquet")
    assert outcome(replay(tmp_path / "trace.parquet")[0]) == outcome(replay(path)[0])
    what_if = {"conf": "roundup_power2_divisions:4"}
    assert outcome(replay(tmp_path / "trace.parquet", **what_if)[0]) == outcome(  # type: ignore[arg-type]
        replay(path, **what_if)[0]  # type: ignore[arg-type]
    )


def test_parquet_keeps_several_devices_apart(tmp_path: Path) -> None:
    snapshot = plain(SMALLEST)
    other = plain(SMALL / "ends.live.pickle.gz")
    snapshot["device_traces"].append(other["device_traces"][0])
    snapshot["segments"] += [{**segment, "device": 1} for segment in other["segments"]]
    write_parquet(read_snapshot(pickle.dumps(snapshot)), tmp_path / "two.parquet")
    results = replay(tmp_path / "two.parquet")
    assert [result.events for result in results] == [237, 705]
    assert all(result.matches_recording for result in results)


def test_parquet_keeps_call_stacks(tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("1GiB"))
    allocator.record_memory_history(stacks=True)
    for _ in range(3):
        allocator.free(allocator.malloc("3MiB"))
    allocator.malloc(512)
    recording = read_snapshot(pickle.dumps(allocator.memory_snapshot()))
    write_parquet(recording, tmp_path / "trace.parquet")
    (trace,), (kept,) = recording.devices, read_recording(tmp_path / "trace.parquet").devices
    stacks = trace.load().stack
    assert stacks.any()
    assert (kept.load().stack == stacks).all()
    for number in np.unique(stacks).tolist():
        assert kept.frames(number) == trace.frames(number)
    assert kept.frames(1 << 30) == trace.frames(1 << 30) == []


def test_parquet_keeps_marks_and_shared_memory(tmp_path: Path) -> None:
    recording = read_recording(SMALLEST)
    batch = events(recording)
    batch = replace(batch, shared=batch.size // 2)
    marks = [Mark(3, 17, "step", 0), Mark(5, 18, "evaluation", None)]
    with TraceWriter(tmp_path / "trace.parquet", marks=marks) as writer:
        writer.write(0, batch)
    kept = read_recording(tmp_path / "trace.parquet")
    assert kept.marks == marks
    assert (kept.devices[0].load().shared == batch.shared).all()


def test_parquet_of_the_first_format_opens(tmp_path: Path) -> None:
    batch = events(read_recording(SMALLEST))
    names = [name for name in COLUMNS if name not in ("stack", "shared")]
    columns = {"device": np.zeros(len(batch), np.int32)}
    table = pa.table(columns | {name: getattr(batch, name) for name in names})
    entry = {"events": len(batch), "segments": [], "start": []}
    metadata = {"format": 1, "settings": {}, "devices": {"0": entry}}
    table = table.replace_schema_metadata({"plimsoll": json.dumps(metadata)})
    pq.write_table(table, tmp_path / "trace.parquet")
    (trace,) = read_recording(tmp_path / "trace.parquet").devices
    kept = trace.load()
    assert (kept.address == batch.address).all()
    assert not kept.stack.any()
    assert not kept.shared.any()
    assert trace.frames(1) == []


def test_parquet_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    batch = events(read_recording(SMALLEST))
    target = tmp_path / "trace.parquet"

    def fail_in_the_middle() -> None:
        with TraceWriter(target) as writer:
            writer.write(0, batch)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_in_the_middle()
    assert list(tmp_path.iterdir()) == []
    with TraceWriter(target) as writer:
        writer.write(0, batch)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.parquet"]
    assert target.stat().st_mode & 0o077 == 0
    before = target.read_bytes()
    with pytest.raises(InputError, match="exists already"), TraceWriter(target):
        pass
    assert target.read_bytes() == before


def test_a_cut_history_that_contradicts_its_segments_is_refused() -> None:
    snapshot = plain(SMALL / "ring.default.pickle.gz")
    snapshot["segments"] = snapshot["segments"][1:]
    with pytest.raises(InputError, match="its start cannot be reconstructed"):
        replay(read_snapshot(pickle.dumps(snapshot)))


# --- hostile bytes -------------------------------------------------------------------------------

VALID = pickle.dumps(plain(SMALL / "ends.live.pickle.gz"))
FIXED = settings(deadline=None, max_examples=150, derandomize=bool(os.environ.get("CI")))


def read_or_refuse(content: bytes) -> None:
    """Replays a recording. If plimsoll refuses it, checks that the message is a single line."""
    message = ""
    try:
        replay(read_snapshot(content))
    except InputError as error:
        message = str(error)
    assert "\n" not in message


@FIXED
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes) -> None:
    read_or_refuse(content)


@FIXED
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_damaged_snapshots_are_read_or_refused(chance: random.Random, damage: int) -> None:
    content = bytearray(VALID)
    for _ in range(damage):
        place = chance.randrange(len(content))
        match chance.randrange(3):
            case 0:
                content[place] = chance.randrange(256)
            case 1:
                del content[place : place + chance.randrange(1, 40)]
            case _:
                content[place:place] = bytes(chance.randrange(256) for _ in range(4))
    read_or_refuse(bytes(content))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc",
                                   "segment_free", "segment_map", "segment_unmap", "oom"]) | VALUES,
        "addr": st.integers(0, 2**20) | VALUES,
        "size": st.integers(0, 2**22) | VALUES,
        "stream": st.integers(0, 3) | VALUES,
        "time_us": st.integers(0, 9) | VALUES,
        "device_free": st.integers(0, 9) | VALUES,
        "pool_id": st.tuples(st.integers(0, 2), st.integers(0, 2)) | VALUES,
        "frames": VALUES,
    },
)  # fmt: skip


@FIXED
@given(
    st.lists(EVENTS, max_size=8),
    VALUES,
    st.fixed_dictionaries({}, optional={"PYTORCH_CUDA_ALLOC_CONF": st.text() | VALUES}) | VALUES,
)
def test_snapshots_of_nonsense_are_read_or_refused(
    trace: list[dict[str, Any]], segments: Any, allocator_settings: Any
) -> None:
    snapshot = {
        "device_traces": [trace],
        "segments": segments,
        "allocator_settings": allocator_settings,
    }
    read_or_refuse(pickle.dumps(snapshot))


def test_the_shipped_recordings_are_plain_data() -> None:
    for path in EXAMPLES.glob("*.pickle.gz"):
        assert read_recording(path).devices
