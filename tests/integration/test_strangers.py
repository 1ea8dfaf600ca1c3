"""Tests that plimsoll reads untrusted files in linear time and memory, and reports damage."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plimsoll import InputError, _core, explain, replay
from plimsoll.base.units import MiB
from plimsoll.page.document import make_page
from plimsoll.page.run import prepare
from plimsoll.recordings.checks import reading_memory
from plimsoll.recordings.events import COLUMNS
from plimsoll.recordings.parquet import TraceWriter, write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from plimsoll.recordings.snapshot_reader import read_snapshot
from tests import fuzz
from tests.commands import run_plimsoll
from tests.recordings import ROOT, SMALL

if TYPE_CHECKING:
    from pathlib import Path

EVENT = {"action": "alloc", "addr": 1 << 40, "size": 512, "stream": 0, "time_us": 5}
FREE = EVENT | {"action": "free_requested"}


def snapshot(events: list[dict[str, Any]], settings: Any = None) -> bytes:
    return pickle.dumps(
        {"device_traces": [events], "segments": [], "allocator_settings": settings or {}}, 4
    )


class TestPickles:
    def test_a_dictionary_that_is_listed_again_and_again_is_refused(self) -> None:
        large = EVENT | {f"key {number}": 0 for number in range(5000)}
        with pytest.raises(InputError, match="again and again"):
            read_snapshot(snapshot([large] * 5000))

    def test_so_is_a_block(self) -> None:
        block = {"size": 0, "state": "inactive"} | {f"key {n}": 0 for n in range(5000)}
        segment = {"address": 0, "total_size": 0, "blocks": [block] * 5000}
        content = pickle.dumps({"device_traces": [[EVENT]], "segments": [segment]})
        with pytest.raises(InputError, match="again and again"):
            read_snapshot(content)

    def test_frames_share_their_names(self) -> None:
        name = "x" * 3000
        frames = [{"filename": name, "line": line, "name": name} for line in range(2)]
        (trace,) = read_snapshot(snapshot([EVENT | {"frames": [one]} for one in frames])).devices
        (first,), (second,) = (trace.frames(int(stack)) for stack in trace.load().stack)
        assert first[1] != second[1]
        assert first[0] is first[2] is second[0]
        assert len(first[0]) < 3000, "cut, for it is part of what is shown of each line"

    @pytest.mark.parametrize(
        "settings",
        [
            {f"key {number}": text for text in ["x" * 60_000] for number in range(9000)},
            {"a": [[dict.fromkeys(range(3000))] * 3000]},
        ],
        ids=["text", "keys"],
    )
    def test_settings_that_stand_for_more_are_refused(self, settings: Any) -> None:
        with pytest.raises(InputError, match="settings are too large"):
            read_snapshot(snapshot([EVENT], settings))

    def test_values_take_no_more_memory_than_they_may(self) -> None:
        content = b"]" * (1 << 20) + b"."
        with pytest.raises(InputError, match=r"more than 16\.00 MiB of memory; --read-memory"):
            read_snapshot(content, memory="16MiB")
        with pytest.raises(InputError, match="not a memory snapshot"):
            read_snapshot(content, memory="1GiB")

    def test_gzip_expands_no_further_than_it_may(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.pickle.gz"
        path.write_bytes(gzip.compress(bytes(32 * MiB)))
        with pytest.raises(InputError, match=r"more than 16\.00 MiB of memory"):
            read_recording(path, memory="16MiB")
        with pytest.raises(InputError, match="not a readable pickle"):
            read_recording(path, memory="64MiB")

    def test_no_memory_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def spent(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(_core, "SnapshotFile", spent)
        path = tmp_path / "run.pickle"
        path.write_bytes(snapshot([EVENT]))
        with pytest.raises(InputError, match="not enough memory to read it"):
            read_recording(path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"size": 1 << 60}, "impossible size"),
            ({"addr": 1 << 63}, "impossible address"),
            ({"time_us": 1 << 60}, "impossible time"),
        ],
    )
    def test_an_event_that_cannot_be_is_refused(self, change: dict[str, int], message: str) -> None:
        with pytest.raises(InputError, match=message):
            read_snapshot(snapshot([EVENT | change]))

    def test_a_refused_request_may_be_of_any_size(self) -> None:
        refused = {"action": "oom", "size": 1 << 60, "device_free": 0, "stream": 0, "time_us": 5}
        (trace,) = read_snapshot(snapshot([EVENT, refused])).devices
        assert int(trace.load().size.max()) == 1 << 60

    def test_a_configuration_of_another_pytorch_is_named(self) -> None:
        recording = read_snapshot(
            snapshot([EVENT, FREE], {"PYTORCH_CUDA_ALLOC_CONF": "key_of_tomorrow:1"})
        )
        with pytest.raises(InputError, match=r"key_of_tomorrow.*--conf '' replays"):
            replay(recording)


def same_events(recording: Recording, whole: Recording) -> bool:
    """Returns whether a recording's events are the first events of another recording."""
    for trace in recording.devices:
        events = trace.load()
        wanted = next(one for one in whole.devices if one.device == trace.device).load()
        for name in COLUMNS:
            if not np.array_equal(getattr(events, name), getattr(wanted, name)[: len(events)]):
                return False
    return True


@pytest.mark.parametrize("form", ["plim", "parquet"])
class TestFlippedBits:
    def test_events_are_never_others(self, form: str, tmp_path: Path) -> None:
        whole = tmp_path / f"whole.{form}"
        content = fuzz.seed("ends.live", form)
        whole.write_bytes(content)
        good = read_recording(whole)
        chance = random.Random(3)
        places = chance.sample(range(len(content)), 700)
        noticed = 0
        for place in places:
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            path = tmp_path / f"damaged.{form}"
            path.write_bytes(damaged)
            try:
                recording = read_recording(path)
                assert same_events(recording, good)
                is_all = sum(trace.event_count for trace in recording.devices) == sum(
                    trace.event_count for trace in good.devices
                )
                assert is_all or recording.problems
                assert recording.settings == good.settings
                noticed += not is_all
            except InputError:
                noticed += 1
        assert noticed > len(places) / 2


def test_blocks_that_overlap_are_explained_as_far_as_can_be() -> None:
    """Explains a damaged history in which blocks overlap."""
    segment = EVENT | {"action": "segment_alloc", "size": 1 << 20}
    blocks = [EVENT | {"addr": (1 << 40) + at, "size": 4096} for at in (0, 1024, 512, 2048)]
    content = snapshot([segment, *blocks], {"allocator": "uncached"})
    assert explain(read_snapshot(content), advice=False).events == 5


class TestStreams:
    @pytest.mark.parametrize("key", ["PYTORCH_CUDA_ALLOC_CONF", "torch_version"])
    def test_settings_that_are_no_text_are_refused(self, key: str, tmp_path: Path) -> None:
        schema, header, parts = fuzz.unpack_plim(fuzz.seed("ends.live", "plim"))
        header["settings"][key] = "2.\ud800"
        path = tmp_path / "run.plim"
        path.write_bytes(fuzz.pack_plim(schema, header, parts))
        with pytest.raises(InputError, match="not a streaming trace"):
            read_recording(path)

    def test_damage_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "run.plim"
        path.write_bytes(fuzz.seed("ends.live", "plim"))
        whole = read_recording(path)
        assert whole.problems == []
        content = bytearray(path.read_bytes())
        # Damage the last batch: change one character of its JSON.
        place = content.rindex(b'"ended"') + 1
        content[place] = ord("E")
        path.write_bytes(content)
        recording = read_recording(path)
        (problem,) = recording.problems
        assert problem.startswith("damaged after event ")
        assert "checksum" in problem

    def test_batches_that_changed_places_are_noticed(self, tmp_path: Path) -> None:
        with pa.ipc.open_stream(fuzz.seed("ends.live", "plim")) as stream:
            schema = stream.schema
            parts = [stream.read_next_batch_with_custom_metadata() for _ in range(2)]
        path = tmp_path / "swapped.plim"
        with pa.ipc.new_stream(path, schema) as writer:
            for batch, metadata in reversed(parts):
                writer.write_batch(batch, dict(metadata))
        with pytest.raises(InputError, match="empty or damaged"):
            read_recording(path)

    def test_marks_take_no_more_memory_than_they_may(self, tmp_path: Path) -> None:
        schema, header, ((batch, _), *_) = fuzz.unpack_plim(fuzz.seed("ends.live", "plim"))
        rows = batch.num_rows
        devices = pa.array(np.arange(rows, dtype=np.int32) % 100)
        many = batch.set_column(0, schema.field(0), devices)
        path = tmp_path / "run.plim"
        facts = {"marks": [[0, 5, "step"]] * 5000}
        path.write_bytes(fuzz.pack_plim(schema, header, [(many, facts)]))
        with pytest.raises(InputError, match=r"more than 16\.00 MiB of memory"):
            read_recording(path, memory="16MiB")
        assert len(read_recording(path).marks) == 5000 * 100

    def test_a_column_expands_no_further_than_its_rows(self, tmp_path: Path) -> None:
        with pa.ipc.open_stream(fuzz.seed("ends.live", "plim")) as stream:
            schema, (batch, metadata) = stream.schema, stream.read_next_batch_with_custom_metadata()
        rows = 1 << 20
        columns = [pa.array(np.zeros(rows, dtype=field.type.to_pandas_dtype())) for field in schema]
        large = pa.RecordBatch.from_arrays(columns, schema=schema)
        path = tmp_path / "bomb.plim"
        with pa.ipc.new_stream(
            path, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_batch(batch, dict(metadata))
            writer.write_batch(large)
        recording = read_recording(path)
        assert recording.devices[0].event_count == batch.num_rows
        assert "impossible number of events" in recording.problems[0]

    def test_lines_beyond_all_files_are_none(self, tmp_path: Path) -> None:
        schema, header, parts = fuzz.unpack_plim(fuzz.seed("ends.live", "plim"))
        facts = [known for _, known in parts]
        stacks = {number: [0] for one in facts for number in one.get("stacks", {})}
        facts[0] |= {"frames": [["train.py", 1 << 70, "step"]], "stacks": stacks}
        facts[1] |= {"frames": [], "stacks": {}}
        path = tmp_path / "run.plim"
        batches = [(batch, known) for (batch, _), known in zip(parts, facts, strict=True)]
        path.write_bytes(fuzz.pack_plim(schema, header, batches))
        assert make_page([prepare(read_recording(path))]).events > 0

    def test_damage_is_still_told_of_what_was_kept_as_parquet(self, tmp_path: Path) -> None:
        path = tmp_path / "run.plim"
        content = bytearray(fuzz.seed("ends.live", "plim"))
        content[content.rindex(b'"ended"') + 1] = ord("E")
        path.write_bytes(content)
        write_parquet(read_recording(path), tmp_path / "run.parquet")
        (problem,) = read_recording(tmp_path / "run.parquet").problems
        assert "its checksum is wrong" in problem


class TestParquet:
    def test_devices_have_as_many_events_as_it_says(self, tmp_path: Path) -> None:
        (trace,) = read_recording(SMALL / "ends.live.pickle.gz").devices
        path = tmp_path / "run.parquet"
        with TraceWriter(path) as writer:
            for device, count in ((0, 10), (1, 20)):
                writer.write(device, trace.load()[:count])
        table = pq.read_table(path)
        metadata = json.loads(pq.read_metadata(path).metadata[b"plimsoll"])
        metadata["format"] = 2  # format 3 has a checksum, which would be wrong after these changes
        metadata["devices"]["0"]["events"], metadata["devices"]["1"]["events"] = 20, 10
        pq.write_table(table.replace_schema_metadata({"plimsoll": json.dumps(metadata)}), path)
        first, second = read_recording(path).devices
        for one in (first, second):
            with pytest.raises(InputError, match="the number of its events is wrong"):
                one.load()

    @pytest.mark.parametrize("name", ["00", "+0", "\u0660", "-1", "120"])
    def test_a_device_has_one_number(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        path.write_bytes(fuzz.seed("ends.live", "parquet"))
        table = pq.read_table(path)
        metadata = json.loads(pq.read_metadata(path).metadata[b"plimsoll"])
        metadata["format"] = 2  # format 3 has a checksum, which would be wrong after this change
        metadata["devices"] = {name: metadata["devices"]["0"]}
        pq.write_table(table.replace_schema_metadata({"plimsoll": json.dumps(metadata)}), path)
        with pytest.raises(InputError, match="a device has an impossible number"):
            read_recording(path)

    @staticmethod
    def zeros(rows: int) -> pa.Table:
        content = fuzz.seed("ends.live", "parquet")
        schema = pq.read_schema(io.BytesIO(content))
        columns = [pa.array(np.zeros(rows, dtype=field.type.to_pandas_dtype())) for field in schema]
        known = pq.read_metadata(io.BytesIO(content)).metadata
        metadata = {key: known[key] for key in (b"plimsoll", b"plimsoll.stacks", b"plimsoll.crc")}
        return pa.Table.from_arrays(columns, schema=schema.with_metadata(metadata))

    def test_an_end_that_contradicts_itself_does_not_end_the_process(self, tmp_path: Path) -> None:
        content = fuzz.seed("ends.live", "parquet")
        may_be_null, never_null = b"\x25\x02\x18\x06device", b"\x25\x00\x18\x06device"
        assert content.count(may_be_null) == 1
        path = tmp_path / "run.parquet"
        path.write_bytes(content.replace(may_be_null, never_null))
        with pytest.raises(InputError, match=r"run\.parquet"):
            read_recording(path)

    def test_events_take_no_more_memory_than_they_may(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.parquet"
        pq.write_table(self.zeros(3 << 20), path, compression="zstd")
        assert path.stat().st_size < MiB
        with pytest.raises(InputError, match=r"more than 100\.00 MiB of memory"):
            read_recording(path, memory="100MiB")

    def test_a_page_is_not_decompressed_to_more_than_pages_have(self, tmp_path: Path) -> None:
        path = tmp_path / "page.parquet"
        rows = 10 << 20
        pq.write_table(
            self.zeros(rows), path, compression="zstd", use_dictionary=False, row_group_size=rows,
            data_page_size=1 << 30, write_batch_size=rows, max_rows_per_page=rows,
        )  # fmt: skip
        with pytest.raises(InputError, match="a page has an impossible size"):
            read_recording(path)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux only")
@pytest.mark.parametrize("form", fuzz.FORMATS)
def test_folders_may_have_any_name(form: str, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"no \xff utf-8") / f"run.{form}"
    path.parent.mkdir()
    path.write_bytes(fuzz.seed("ends.live", form))
    (result,) = replay(path)
    assert result.matches_recording
    ended = run_plimsoll("replay", path)
    assert ended.returncode == 0, ended.stderr


class TestCommands:
    """Tests each command that reads recordings."""

    VERBS = (("replay",), ("explain", "--no-advice"), ("view", "--force"))

    @pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
    def test_more_memory_can_be_allowed(self, verb: tuple[str, ...], tmp_path: Path) -> None:
        path = tmp_path / "run.pickle.gz"
        content = pickle.loads(fuzz.seed("ends.live", "pickle"))
        path.write_bytes(gzip.compress(pickle.dumps(content | {"padding": bytes(20 * MiB)})))
        refused = run_plimsoll(*verb, str(path), "--read-memory", "16MiB")
        assert refused.returncode == 2
        assert refused.stderr == (
            f"plimsoll: {path}: reading takes more than 16.00 MiB of memory; --read-memory 32MiB "
            "(from Python: read_recording(..., memory=...)) allows more\n"
        )
        assert run_plimsoll(*verb, str(path), "--read-memory", "64MiB").returncode == 0

    @pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
    def test_damage_is_told_and_the_rest_is_used(
        self, verb: tuple[str, ...], tmp_path: Path
    ) -> None:
        path = tmp_path / "run.plim"
        content = bytearray(fuzz.seed("ends.live", "plim"))
        content[content.rindex(b'"ended"') + 1] = ord("E")
        path.write_bytes(content)
        ended = run_plimsoll(*verb, str(path))
        assert ended.returncode in (0, 1)
        page = path.with_suffix(".html")
        told = ended.stdout + ended.stderr + (page.read_text() if page.exists() else "")
        assert re.search("[Dd]amaged after event ", told)

    def test_an_unknown_configuration_can_be_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "run.pickle"
        content = pickle.loads(fuzz.seed("ends.live", "pickle"))
        content["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "key_of_tomorrow:1"
        path.write_bytes(pickle.dumps(content))
        refused = run_plimsoll("replay", str(path))
        assert refused.returncode == 2
        assert "key_of_tomorrow" in refused.stderr
        assert "--conf '' replays under PyTorch's defaults" in refused.stderr
        assert run_plimsoll("replay", str(path), "--conf", "").returncode == 0


def test_mutated_files_break_nothing() -> None:
    """Runs 240 cases. `make fuzz` runs cases for an hour, under the sanitizers."""
    cases = ["--first", "0", "--cases", "240"]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *cases], cwd=ROOT, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"240 cases, 0 found" in ended.stdout


def test_the_default_follows_the_size_of_the_file() -> None:
    assert reading_memory(10, None) == 1024 * MiB
    assert reading_memory(1024 * MiB, None) == 8 * 1024 * MiB
    assert reading_memory(1024 * MiB, "2GiB") == 2048 * MiB
    assert reading_memory(10 * MiB, None, goes_by=True) == 2560 * MiB
