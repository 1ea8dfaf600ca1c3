"""Tests that a notebook shows a result's answer, tables and whole text, and no hostile HTML."""

from __future__ import annotations

import html
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

import plimsoll
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.replays.replay import replay
from plimsoll.engine.replays.results import Replays
from plimsoll.prediction.fitting.parts import Trial
from plimsoll.prediction.fitting.results import Fit
from plimsoll.recordings.analysis.lines import LineShare
from tests.recordings import SMALL
from tests.unit.test_plan_text import BASE, BOTH, ONE, plan_of
from tests.unit.test_text import HOSTILE, assert_harmless, hostile_recording
from tests.unit.tiny_script import prediction

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.base.notebook_form import NotebookForm


class Page(HTMLParser):
    """Collects the text and the table rows of an HTML page, whose elements must all be closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.lines: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.lines.append(data)
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def shown(result: NotebookForm) -> Page:
    """Returns what a notebook shows; it must contain the text of the terminal."""
    bundle = result._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == str(result)
    assert_harmless(bundle["text/html"])
    page = Page(bundle["text/html"])
    assert page.lines[0] == str(result).splitlines()[0]
    return page


def test_a_prediction() -> None:
    found = replace(
        prediction(3 * GiB, 4 * GiB, room=5 * GiB, seconds=0.1),
        by_category={"activations": GiB, "parameters": 2 * GiB, "rounding": 0},
        top_lines=[LineShare("train.py:7 <lambda>", 3 * GiB, 2)],
    )
    page = shown(found)
    assert "to spare" in page.lines[0]
    assert ["peak reserved", "4.00 GiB"] in page.rows
    sizes = [row for row in page.rows if len(row) == 3]
    assert sizes == [
        ["parameters", "2.00 GiB", "66.7%"],
        ["activations", "1.00 GiB", "33.3%"],
        ["train.py:7 <lambda>", "3.00 GiB", "100.0%"],
    ]
    assert str(found) in "".join(page.lines)


def test_a_prediction_of_a_script_without_cuda_is_one_line() -> None:
    found = replace(prediction(0, 0, room=GiB, seconds=None), uses_cuda=False)
    assert shown(found).lines == ["train.py never touches CUDA: it needs no GPU memory."]


def test_a_fit() -> None:
    found = Fit(
        gpu="T4", vary="--batch-size", largest=2, smallest_failing=3, stopped=None, multiple_of=1,
        total_bytes=GiB, used_bytes=0, headroom_bytes=0, seconds=1.0, written=[],
        curve=[
            Trial(2, True, MiB, 0.4, GiB - MiB),
            Trial(3, False, 2 * GiB, None, -GiB, error="ValueError: odd"),
        ],
    )  # fmt: skip
    assert shown(found).rows == [
        ["--batch-size"],
        ["2", "fits, 1.00 MiB of 1.00 GiB, about 400 ms a step"],
        ["3", "the script fails: ValueError: odd"],
    ]


def test_a_plan() -> None:
    page = shown(plan_of(front=[BASE, ONE, BOTH], tried=[BASE, ONE, BOTH]))
    assert page.rows[1:] == [
        ["unchanged", "9.00 GiB", "100 ms"],
        ["one", "7.00 GiB", "120 ms"],
        ["one + two", "5.00 GiB", "160 ms"],
    ]
    assert "+x = 1" in "".join(page.lines)
    nothing = plan_of(fits=False, floor_bytes=7 * GiB, floor_held={"activations": 4 * GiB})
    assert shown(nothing).rows == [["activations", "4.00 GiB"]]


def test_replays() -> None:
    file = SMALL / "churn.default.pickle.gz"
    found = Replays([*replay(file), *replay(file, allocator="elastic")])
    page = shown(found)
    assert page.rows[0][:3] == ["configuration", "allocated", "reserved"]
    assert {row[0] for row in page.rows[1:]} == {"default", "elastic"}
    assert all(row[2].endswith("iB") for row in page.rows[1:])


def test_an_explanation() -> None:
    found = plimsoll.explain(SMALL / "churn.default.pickle.gz", advice=False)
    page = Page(found._repr_mimebundle_()["text/html"])
    assert ["allocated"] in [row[:1] for row in page.rows]
    assert str(found) in "".join(page.lines)


def test_a_recorder_says_what_to_do_with_its_file(tmp_path: Path) -> None:
    allocator = plimsoll.Allocator(plimsoll.SimulatedGpu("8GiB"))
    recorder = plimsoll.record(tmp_path / "run.plim", allocator=allocator)
    assert len(shown(recorder).lines) == 1
    with recorder:
        allocator.free(allocator.malloc("4MiB"))
    page = shown(recorder)
    assert page.lines[1].startswith(f"plimsoll.explain('{tmp_path}")


def test_a_page_is_a_link(tmp_path: Path) -> None:
    found = plimsoll.view(hostile_recording(), output=tmp_path / "a 'page' #1.html")
    source = found._repr_html_()
    assert "%27page%27%20%231.html" in html.unescape(source)
    assert f"{tmp_path}/a 'page' #1.html" in shown(found).lines


@pytest.mark.parametrize("kind", ["prediction", "replays", "explanation", "plan"])
def test_nothing_that_others_named_becomes_a_tag_or_a_command(kind: str) -> None:
    name = f"<b>{HOSTILE}</b>"
    results: dict[str, NotebookForm] = {
        "prediction": replace(prediction(GiB, GiB, room=GiB, seconds=None), script=name),
        "replays": replay(replace(hostile_recording(), name=name)),
        "explanation": plimsoll.explain(replace(hostile_recording(), name=name), advice=False),
        "plan": plan_of(script=name, patch=name),
    }
    source = results[kind]._repr_html_()
    assert_harmless(source)
    assert "&lt;b&gt;" in source
    assert "<b>\\x1b" not in source
    Page(source)
