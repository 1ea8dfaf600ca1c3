"""Tests that plimsoll shows untrusted text without control characters or direction marks."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import InputError, ScriptError
from plimsoll.base.printable import join_lines, printable
from plimsoll.explanation.explain import explain
from plimsoll.integrations.top.details import details
from plimsoll.integrations.top.text import render
from plimsoll.page.document import make_page
from plimsoll.page.exports import export
from plimsoll.page.run import prepare
from plimsoll.recordings.recording import Mark, Recording
from tests.unit.fake_nvml import FakeNvml, Gpu
from tests.unit.top_machines import device, machine, process
from tests.unit.view_histories import MiB, recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.recordings.events import Frame

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egpj.\u2066\u200f\r\n\t\x00\x9b\u2028\udcff"
ROWS = [(3, 0, 4 * MiB, 0, 0, 0), (0, 0, MiB, 0, 1, 0), (0, MiB, 2 * MiB, 0, 2, 0)]


def stack(name: str) -> list[Frame]:
    return [(f"/home/me/{name}.py", 1, name)]


def hostile_recording() -> Recording:
    return recording_of(
        ROWS,
        stacks={1: stack(HOSTILE), 2: stack("model")},
        marks=[Mark(1, 1_000_003, HOSTILE)],
        name=f"/home/me/{HOSTILE}.pickle",
    )


def assert_harmless(text: str) -> None:
    assert [line for line in text.split("\n") if not line.isprintable()] == []


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_what_is_shown_has_only_what_can_be_seen(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


def test_what_cannot_be_seen_is_written_as_python_escapes_it() -> None:
    assert printable("a\x1b[31m\tb\n\u202ec\U000e0001\udcff é 中") == (
        r"a\x1b[31m\tb\n\u202ec\U000e0001\udcff é 中"
    )
    assert join_lines(["a\nb", "c"]) == "a\\nb\nc"


def test_errors_are_one_harmless_line() -> None:
    for error in (InputError(f"{HOSTILE}: no such file"), ScriptError(HOSTILE, 1)):
        assert str(error).isprintable()


def test_an_explanation_is_harmless() -> None:
    found = explain(hostile_recording(), advice=False)
    found = replace(found, notes=[*found.notes, HOSTILE], conf=HOSTILE, allocator=HOSTILE)
    assert r"\u202egpj" in str(found)
    assert_harmless(str(found))
    assert_harmless(found._repr_html_())
    assert json.loads(json.dumps(found.to_dict()))["conf"] == HOSTILE


def test_a_page_shows_nothing_hostile() -> None:
    run = prepare(hostile_recording())
    html = make_page([run]).html
    assert r"\\u202egpj" in html
    assert re.search(r"[^\\]\\u(202e|2066|200f|001b|2028|dcff)", html) is None
    assert [moment.text for moment in run.devices[0].moments if moment.kind == "mark"] == [
        printable(HOSTILE)
    ]
    # `name` is the unchanged file name. The page shows `title`, which is printable.
    assert run.name.startswith(HOSTILE)


@pytest.mark.parametrize("kind", ["perfetto", "speedscope", "csv"])
def test_an_export_has_nothing_hostile(kind: str, tmp_path: Path) -> None:
    content = export(hostile_recording(), kind, tmp_path / "out").read_text("utf-8")
    assert r"\u202egpj" in content
    assert_harmless(content)
    if kind != "csv":
        for text in texts_in(json.loads(content)):
            assert text.isprintable()


def texts_in(data: object) -> list[str]:
    if isinstance(data, dict):
        return [text for item in data.items() for part in item for text in texts_in(part)]
    if isinstance(data, list):
        return [text for part in data for text in texts_in(part)]
    return [data] if isinstance(data, str) else []


@pytest.mark.parametrize("name", ["=cmd|'calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "a=1"])
def test_no_cell_of_a_table_is_a_formula(name: str, tmp_path: Path) -> None:
    recording = recording_of(ROWS, stacks={1: [(f"{name}.py", 1, "main")], 2: stack("model")})
    path = export(recording, "csv", tmp_path / "out.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    quote = "'" if name[0] in "=+-@" else ""
    assert rows[0]["line"] == f"{quote}{printable(name)}.py:1 main"
    for row in rows:
        assert row["size_bytes"].isdecimal()
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row.values())


def test_other_peoples_processes_are_shown_harmlessly() -> None:
    hostile = process(11, device(name=HOSTILE, uuid="zz"), program=HOSTILE, allocator=HOSTILE)
    found = machine(FakeNvml(Gpu("GPU-aa", name=HOSTILE)), hostile)
    for width in (40, 80, 200):
        view = render(found, width)
        assert_harmless(view.text.plain)
        for row in view.rows:
            assert_harmless(details(row, width).plain)
    assert found.to_dict()["gpus"][-1]["processes"][0]["program"] == HOSTILE


@pytest.mark.parametrize(
    ("reason", "is_rank"),
    [
        ("KeyError: 'LOCAL_RANK' (train.py:3 main)", True),
        ("ValueError: Error: environment variable RANK expected, but not set", True),
        ("KeyError: 'RANKS' (train.py:3 main)", False),
    ],
)
def test_a_rank_that_runs_alone_is_told_how_to_start_all(reason: str, is_rank: bool) -> None:
    text = str(ScriptError("train.py", 1, reason=reason))
    assert ("--nproc-per-node N" in text) == is_rank
