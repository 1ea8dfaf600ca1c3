"""Compares the files that plimsoll exports for other tools with the recording's own history."""

from __future__ import annotations

import csv
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plimsoll import InputError
from plimsoll.page.exports import EXPORTS, export
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.reading import read_recording
from tests.recordings import EXAMPLES
from tests.unit.view_histories import STACKS, recording_of

if TYPE_CHECKING:
    from pathlib import Path

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
ROWS = [
    (3, 0, 1 << 21, 0, 0, 0),
    (0, 0, 1000, 0, 1, 0),
    (0, 4096, 600, 7, 2, 100),
    (1, 0, 1000, 0, 1, 0),
    (2, 0, 1000, 0, 1, 0),
    (0, 8192, 50, 0, 0, 0),
]


def exported(kind: str, tmp_path: Path) -> Any:
    path = export(recording_of(ROWS, stacks=STACKS), kind, tmp_path / "out")
    return json.loads(path.read_text())


def test_perfetto_gets_counters_and_the_life_of_every_block(tmp_path: Path) -> None:
    events = exported("perfetto", tmp_path)["traceEvents"]
    counters = [
        (event["ts"], event["args"]["bytes"])
        for event in events
        if event["ph"] == "C" and event["name"] == "allocated"
    ]
    assert counters == [(0, 0), (3, 1000), (6, 1600), (9, 600), (15, 650)]
    reserved = [e for e in events if e["ph"] == "C" and e["name"] == "reserved"]
    assert [(e["ts"], e["args"]["bytes"]) for e in reserved] == [(0, 1 << 21)]
    begun = {event["id"]: event for event in events if event["ph"] == "b"}
    ended = {event["id"]: event for event in events if event["ph"] == "e"}
    assert begun.keys() == ended.keys()
    lives = sorted((begun[i]["ts"], ended[i]["ts"], begun[i]["args"]["size_bytes"]) for i in begun)
    assert lives == [(3, 9, 1000), (6, 15, 600), (15, 15, 50)]
    assert begun[0]["args"]["line"].endswith("model.py:10 forward")
    assert all(begun[i]["cat"] == ended[i]["cat"] == "block" for i in begun)


def test_perfetto_counters_end_at_the_recorded_level(tmp_path: Path) -> None:
    path = export(RECORDING, "perfetto", tmp_path / "out.json")
    events = json.loads(path.read_text())["traceEvents"]
    level = find_lifetimes(read_recording(RECORDING).devices[0]).level()
    counted = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "allocated"]
    assert counted[-1] == level[-1]
    assert max(counted) <= level.max()


def test_speedscope_gets_the_peak_by_stack(tmp_path: Path) -> None:
    made = exported("speedscope", tmp_path)
    (profile,) = made["profiles"]
    names = [frame["name"] for frame in made["shared"]["frames"]]
    stacks = {
        tuple(names[frame] for frame in sample): weight
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert stacks == {("main", "forward"): 1000, ("main", "step"): 600}
    assert (profile["type"], profile["unit"], profile["endValue"]) == ("sampled", "bytes", 1600)


def test_csv_has_a_row_a_block(tmp_path: Path) -> None:
    path = export(recording_of(ROWS, stacks=STACKS), "csv", tmp_path / "out.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("allocated_event", "free_requested_event", "size_bytes")
    found = [tuple(row[column] for column in columns) for row in rows]
    assert found == [("1", "3", "1000"), ("2", "", "600"), ("5", "", "50")]
    assert rows[1]["shared_bytes"] == "100"
    assert rows[1]["stream"] == "7"
    assert rows[1]["address"] == "0x1000"
    assert rows[0]["allocated_us"] == "1000003"


def test_csv_of_a_recording_adds_up(tmp_path: Path) -> None:
    path = export(RECORDING, "csv", tmp_path / "out.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lifetimes = find_lifetimes(read_recording(RECORDING).devices[0])
    assert Counter(int(row["size_bytes"]) for row in rows) == Counter(lifetimes.size.tolist())


def test_parquet_is_read_again(tmp_path: Path) -> None:
    path = export(RECORDING, "parquet", tmp_path / "out.parquet")
    one, two = (read_recording(file).devices[0].load() for file in (RECORDING, path))
    assert np.array_equal(one.address, two.address)


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_is_overwritten_only_if_that_is_wanted(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(InputError, match="not overwritten; --force"):
        export(RECORDING, kind, out)
    assert out.read_text() == "mine"
    export(RECORDING, kind, out, force=True)
    assert out.stat().st_size > 100
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no such export: 'svg'; there are perfetto, "):
        export(RECORDING, "svg")
