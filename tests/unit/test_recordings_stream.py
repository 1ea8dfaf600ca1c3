"""Tests recordings in the stream format: written data is read back; damage is noticed."""

from __future__ import annotations

import io
import os
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll import InputError, replay
from plimsoll.recordings.events import COLUMNS, EventBatch, Frame
from plimsoll.recordings.expansion import read_messages
from plimsoll.recordings.label import Label
from plimsoll.recordings.parquet import write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.stream_writer import StreamWriter
from tests.fuzz import pack_plim, unpack_plim
from tests.recordings import SMALL

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FIXED = settings(
    deadline=None,
    max_examples=150,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def frames_of(stack: int) -> list[Frame]:
    """Returns the two frames of a stack. Every third stack has the same outer frame."""
    return [("train.py", stack, "step"), ("train.py", stack % 3, "main")]


def some_events(count: int, seed: int = 1) -> tuple[NDArray[np.int32], EventBatch]:
    chance = np.random.default_rng(seed)
    columns = {name: chance.integers(0, 1 << 20, count) for name in COLUMNS}
    columns["action"] %= 9
    columns["shared"] %= columns["size"] + 1
    columns["stack"] = chance.choice([0, 5, 70_000, 3], count)
    return chance.integers(0, 2, count).astype(np.int32), EventBatch.of(columns)


def write(path: Path, batches: int = 5, rows: int = 40) -> tuple[NDArray[np.int32], EventBatch]:
    """Writes batches of events to a file. Returns the device of each event, and all events."""
    writer = StreamWriter(path, frames_of, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    parts = [some_events(rows, seed) for seed in range(batches)]
    for number, (devices, events) in enumerate(parts):
        writer.write(
            devices,
            events,
            marks=[(rows // 2, number, "step")],
            labels=[(rows // 2, 1, 4096 + number, "gradients"), (rows, 0, 8192, "parameters")],
            ended=number == batches - 1,
        )
    writer.close()
    return np.concatenate([d for d, _ in parts]), EventBatch.join(e for _, e in parts)


class Bounded(io.BytesIO):
    """A file that fails if it is read beyond its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size <= len(self.getvalue())
        return super().read(size)


def sizes_of_messages(content: bytes) -> list[tuple[int, int]]:
    """Returns for each complete message its size, and the size of its body."""
    return [
        (8 + len(metadata) + len(body), len(body))
        for metadata, body in read_messages(Bounded(content), len(content))
    ]


def same(batch: EventBatch, wanted: EventBatch) -> bool:
    """Returns whether all columns are equal, except the numbers of stacks."""
    return all(
        np.array_equal(getattr(batch, name), getattr(wanted, name))
        for name in COLUMNS
        if name != "stack"
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    devices, events = write(tmp_path / "run.plim")
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert recording.conf == "expandable_segments:True"
    assert [trace.device for trace in recording.devices] == [0, 1]
    for trace in recording.devices:
        wanted = events[devices == trace.device]
        batch = trace.load()
        assert len(batch) == trace.event_count == len(wanted)
        assert same(batch, wanted)
        for stack, number in set(zip(wanted.stack.tolist(), batch.stack.tolist(), strict=True)):
            assert trace.frames(number) == (frames_of(stack) if stack else [])


def test_stacks_are_spelled_out_once(tmp_path: Path) -> None:
    spelled = []

    def frames(stack: int) -> list[Frame]:
        spelled.append(stack)
        return frames_of(stack)

    writer = StreamWriter(tmp_path / "run.plim", frames)
    for seed in range(3):
        writer.write(*some_events(100, seed))
    writer.close()
    assert sorted(spelled) == [3, 5, 70_000]


def test_equal_stacks_have_one_number(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path / "run.plim", lambda _: frames_of(1))
    writer.write(*some_events(100, 1))
    writer.write(*some_events(100, 2))
    writer.close()
    for trace in read_recording(tmp_path / "run.plim").devices:
        assert np.unique(trace.load().stack).tolist() == [0, 1]


def test_marks_are_counted_by_device(tmp_path: Path) -> None:
    devices, _ = write(tmp_path / "run.plim", batches=2, rows=40)
    marks = read_recording(tmp_path / "run.plim").marks
    assert [(mark.event, mark.time_us, mark.device) for mark in marks] == [
        (int((devices[:end] == device).sum()), time_us, device)
        for time_us, end in ((0, 20), (1, 60))
        for device in (0, 1)
    ]


def test_large_batches_are_cut(tmp_path: Path) -> None:
    devices, events = some_events(300_000)
    writer = StreamWriter(tmp_path / "run.plim", frames_of)
    rows = [0, 131_072, 200_000, 300_000]
    writer.write(devices, events, marks=[(row, row, "step") for row in rows], ended=True)
    writer.close()
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert same(recording.devices[0].load(), events[devices == 0])
    assert [(mark.event, mark.time_us) for mark in recording.marks if mark.device == 0] == [
        (int((devices[:row] == 0).sum()), row) for row in rows
    ]


def test_any_reader_of_arrow_reads_the_events(tmp_path: Path) -> None:
    devices, events = write(tmp_path / "run.plim")
    table = pa.ipc.open_stream(tmp_path / "run.plim").read_all()
    assert table.column_names == ["device", *COLUMNS]
    assert table["device"].to_pylist() == devices.tolist()
    assert table["address"].to_pylist() == events.address.tolist()


def test_segments_keep_their_stacks(tmp_path: Path) -> None:
    source = read_recording(SMALL / "ends.live.pickle.gz").devices[0]
    (segment, *_) = source.segments
    writer = StreamWriter(tmp_path / "run.plim", frames_of)
    writer.write(np.zeros(10, np.int32), some_events(10)[1], end={0: source.segments}, ended=True)
    writer.close()
    (trace,) = read_recording(tmp_path / "run.plim").devices
    assert [s.address for s in trace.segments] == [s.address for s in source.segments]
    assert len(trace.segments[0].blocks) == len(segment.blocks)


@pytest.mark.parametrize("name", ["streams.limited", "ring.default", "late_start.expandable"])
def test_a_snapshot_replays_the_same_as_a_stream(name: str, tmp_path: Path) -> None:
    recording = read_recording(SMALL / f"{name}.pickle.gz")
    writer = StreamWriter(tmp_path / "run.plim", recording.devices[0].frames, recording.settings)
    for trace in recording.devices:
        start = {trace.device: trace.start(recording.conf, "2.11")}
        for batch in trace.batches():
            writer.write(np.full(len(batch), trace.device, np.int32), batch, start=start)
        nothing = batch[:0]
        end = {trace.device: trace.segments}
        writer.write(np.empty(0, np.int32), nothing, end=end, ended=True)
    writer.close()
    ours, theirs = replay(tmp_path / "run.plim")[0], replay(recording)[0]
    assert ours.matches_recording == theirs.matches_recording
    assert ours.memory_stats == theirs.memory_stats


@pytest.mark.parametrize("ending", ["plim", "parquet"])
def test_labels_are_of_their_device_and_moment(ending: str, tmp_path: Path) -> None:
    devices, _ = write(tmp_path / "run.plim", batches=3)
    recording = read_recording(tmp_path / "run.plim")
    if ending == "parquet":
        write_parquet(recording, tmp_path / "run.parquet")
        recording = read_recording(tmp_path / "run.parquet")
    ends = [int((devices[:end] == 0).sum()) for end in (40, 80, 120)]
    halves = [int((devices[:end] == 1).sum()) for end in (20, 60, 100)]
    assert recording.labels_of(0) == [Label(end, 8192, "parameters", 0) for end in ends]
    assert recording.labels_of(1) == [
        Label(half, 4096 + number, "gradients", 1) for number, half in enumerate(halves)
    ]


class TestCutAndDamaged:
    def test_a_cut_file_opens_up_to_its_last_whole_batch(self, tmp_path: Path) -> None:
        devices, events = write(tmp_path / "run.plim")
        content = (tmp_path / "run.plim").read_bytes()
        cut = tmp_path / "cut.plim"
        seen = set()
        for length in range(0, len(content), 97):
            cut.write_bytes(content[:length])
            try:
                recording = read_recording(cut)
            except InputError:
                assert length < 4000, "one batch is there"
                continue
            count = sum(trace.event_count for trace in recording.devices)
            assert count % 40 == 0
            seen.add(count)
            for trace in recording.devices:
                wanted = events[:count][devices[:count] == trace.device]
                assert same(trace.load(), wanted)
                assert all(trace.frames(int(n)) for n in np.unique(trace.load().stack) if n)
            assert len(recording.marks) == len(recording.devices) * count // 40
        assert {40, 80, 120, 160} <= seen

    @pytest.mark.parametrize("claim", [(1 << 31) - 1, -1])
    def test_no_more_is_read_than_the_file_holds(self, claim: int, tmp_path: Path) -> None:
        write(tmp_path / "run.plim", batches=2)
        content = bytearray((tmp_path / "run.plim").read_bytes())
        whole = [size for size, _ in sizes_of_messages(bytes(content))]
        second = sum(whole[:2])
        content[second + 4 : second + 8] = claim.to_bytes(4, "little", signed=True)
        assert [size for size, _ in sizes_of_messages(bytes(content))] == whole[:2]
        (tmp_path / "run.plim").write_bytes(content)
        assert sum(t.event_count for t in read_recording(tmp_path / "run.plim").devices) == 40

    def test_a_message_may_claim_any_size(self, tmp_path: Path) -> None:
        write(tmp_path / "run.plim", batches=2)
        content = (tmp_path / "run.plim").read_bytes()
        whole = sizes_of_messages(content)
        second = sum(size for size, _ in whole[:2])
        place = content.index(whole[2][1].to_bytes(8, "little"), second)
        claimed = content[:place] + (1 << 40).to_bytes(8, "little") + content[place + 8 :]
        assert sizes_of_messages(claimed) == whole[:2]

    @FIXED
    @given(chance=st.randoms(use_true_random=False), damage=st.integers(1, 8))
    def test_damaged_files_are_read_or_refused(
        self, chance: random.Random, damage: int, tmp_path: Path
    ) -> None:
        whole = tmp_path / "whole.plim"
        if not whole.exists():
            write(whole, batches=3)
        content = bytearray(whole.read_bytes())
        for _ in range(damage):
            place = chance.randrange(len(content))
            match chance.randrange(3):
                case 0:
                    content[place] = chance.randrange(256)
                case 1:
                    del content[place : place + chance.randrange(1, 40)]
                case _:
                    content[place:place] = bytes(chance.randrange(256) for _ in range(4))
        self.read_or_refuse(tmp_path / "damaged.plim", bytes(content))

    @FIXED
    @given(content=st.binary(max_size=200))
    def test_random_bytes_are_refused(self, content: bytes, tmp_path: Path) -> None:
        self.read_or_refuse(tmp_path / "random.plim", b"\xff\xff\xff\xff" + content)

    FACTS = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["0", "1", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    )

    @pytest.mark.long
    @FIXED
    @given(
        facts=st.dictionaries(
            st.sampled_from(
                ["frames", "stacks", "marks", "labels", "start", "end", "dropped", "ended"]
            ),
            FACTS,
        )
        | FACTS
    )
    def test_batches_that_say_nonsense_are_left_out(self, facts: object, tmp_path: Path) -> None:
        path = tmp_path / "nonsense.plim"
        path.unlink(missing_ok=True)
        write(path, batches=1)
        schema, header, ((batch, _),) = unpack_plim(path.read_bytes())
        path.write_bytes(pack_plim(schema, header, [(batch, {}), (batch, facts)]))
        recording = read_recording(path)
        assert sum(trace.event_count for trace in recording.devices) in (40, 80)
        for trace in recording.devices:
            trace.load()

    @pytest.mark.parametrize("label", [[41, 0, 1], [0, -1, 1], [0, 0, 1 << 64], [0, 0], 7])
    def test_impossible_labels_end_the_history(self, label: object, tmp_path: Path) -> None:
        path = tmp_path / "labels.plim"
        write(path, batches=1)
        schema, header, ((batch, _),) = unpack_plim(path.read_bytes())
        facts = {"labels": {"inputs": [label]}}
        path.write_bytes(pack_plim(schema, header, [(batch, {}), (batch, facts)]))
        recording = read_recording(path)
        assert recording.damage is not None
        assert sum(trace.event_count for trace in recording.devices) == 40

    @pytest.mark.parametrize(
        ("column", "value"),
        [("device", -1), ("device", 2000), ("action", 9), ("action", None), ("size", None)],
    )
    def test_impossible_values_end_the_history(
        self, column: str, value: int | None, tmp_path: Path
    ) -> None:
        path = tmp_path / "bad.plim"
        write(path, batches=1)
        schema, header, ((batch, _),) = unpack_plim(path.read_bytes())
        values = batch.column(column).to_pylist()
        values[7] = value
        place = schema.get_field_index(column)
        bad = batch.set_column(place, schema.field(column), pa.array(values, schema.types[place]))
        path.write_bytes(pack_plim(schema, header, [(batch, {}), (bad, {})]))
        recording = read_recording(path)
        assert not recording.is_whole
        assert sum(trace.event_count for trace in recording.devices) == 40

    def test_other_streams_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "other.arrow"
        table = pa.table({"a": [1, 2, 3]})
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(InputError, match="not a streaming trace of plimsoll"):
            read_recording(path)
        schema = table.schema.with_metadata({"plimsoll": '{"format": 99, "settings": {}}'})
        with pa.ipc.new_stream(path, schema) as writer:
            writer.write_table(table.cast(schema))
        with pytest.raises(InputError, match="another version of plimsoll"):
            read_recording(path)

    def test_a_file_that_shrinks_while_it_is_read_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "run.plim"
        write(path)
        (trace, _) = read_recording(path).devices
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(InputError, match="changed while it was read"):
            trace.load()

    @staticmethod
    def read_or_refuse(path: Path, content: bytes) -> None:
        """Checks that any bytes give either a readable recording or an error of one line."""
        path.write_bytes(content)
        message = ""
        try:
            for trace in read_recording(path).devices:
                assert len(trace.load()) == trace.event_count
                for number in np.unique(trace.load().stack):
                    trace.frames(int(number))
        except InputError as error:
            message = str(error)
        assert "\n" not in message
