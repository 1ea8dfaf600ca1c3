"""Tests the views of one event in a real browser: map, stacks, segments, blocks, failures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import plimsoll
from plimsoll.base.units import format_size
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from tests.browsing import (
    expect,
    moment,
    opened_pages,
    press,
    started_browser,
    wait_for,
    wait_for_value,
    written,
)
from tests.recordings import EXAMPLES, SMALL
from tests.unit.view_histories import BASE, MiB, Row, recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from plimsoll.recordings.events import Frame
    from tests.browsing import Open

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
ALLOC, ASKED, DONE = (
    int(one) for one in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
)
TAKE, GIVE, OOM = (int(one) for one in (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.OOM))

browser = pytest.fixture(scope="module")(started_browser)
open_page = pytest.fixture(opened_pages)

TORCH = "/x/site-packages/torch/nn/modules/module.py"
STACKS: dict[int, list[Frame]] = {
    1: [("/me/model.py", 10, "forward"), (TORCH, 1, "_call_impl"), ("/me/train.py", 90, "main")],
    2: [("/me/model.py", 20, "forward"), (TORCH, 1, "_call_impl"), ("/me/train.py", 90, "main")],
    # A recursive function appears twice in this stack.
    3: [("/me/tree.py", 5, "walk"), ("/me/tree.py", 5, "walk"), ("/me/train.py", 95, "main")],
    4: [("/me/train.py", 99, "clean_up")],
}


def stacked(sizes: dict[int, list[int]]) -> list[Row]:
    """Returns events that reserve a segment and allocate blocks in it, one after another.

    Args:
        sizes: The sizes in MiB of the blocks that each call stack allocates, keyed by the stack's
            number.
    """
    rows: list[Row] = [(TAKE, BASE, 1024 * MiB, 0, 0, 0)]
    place = BASE
    for stack, some in sizes.items():
        for size in some:
            rows.append((ALLOC, place, size * MiB, 0, stack, 0))
            place += size * MiB
    return rows


@pytest.mark.parametrize(
    "recording",
    [
        RECORDING,
        SMALL / "churn.roundlist.pickle.gz",
        SMALL / "churn.expandable_round8.pickle.gz",
    ],
    ids=["default", "rounded", "expandable_rounded"],
)
def test_rounding_fragments_and_what_can_go_back_are_those_of_a_replay(
    open_page: Open, tmp_path: Path, recording: Path
) -> None:
    (replayed,) = plimsoll.replay(recording)
    assert replayed.matches_recording
    peak = replayed.peak
    page = open_page(f"{written(tmp_path, read_recording(recording))}#event={peak.event}")
    caption = page.locator(".map .caption")
    expect(caption).to_contain_text(f"{format_size(peak.reserved_bytes)} reserved")
    for size, name in (
        (peak.rounding_bytes, "rounding"),
        (peak.split_bytes, "fragments"),
        (peak.cached_bytes, "free, can go back"),
    ):
        expect(caption).to_contain_text(f"{format_size(size)} {name}")


def test_what_a_block_keeps_since_it_is_never_split_is_rounding(
    open_page: Open, tmp_path: Path
) -> None:
    rows: list[Row] = [(TAKE, BASE, 200 * MiB, 0, 0, 0), (ALLOC, BASE, 150 * MiB, 0, 0, 0)]
    for conf, said in (
        ("", "0 bytes rounding50.00 MiB fragments"),
        ("max_split_size_mb:128", "50.00 MiB rounding0 bytes fragments"),
    ):
        page = open_page(f"{written(tmp_path, recording_of(rows, conf=conf))}#event=1")
        expect(page.locator(".map .caption")).to_contain_text(said)


def test_rounding_is_seen_on_the_map(open_page: Open, tmp_path: Path) -> None:
    rows: list[Row] = [(TAKE, BASE, 20 * MiB, 0, 0, 0), (ALLOC, BASE, 10 * MiB + 1, 0, 0, 0),
                       (ALLOC, BASE + 11 * MiB, 9 * MiB, 0, 0, 0)]  # fmt: skip
    page = open_page(f"{written(tmp_path, recording_of(rows))}#event=2")
    page.get_by_label("Layout of the map").select_option("full")
    box = page.locator(".map-canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 10.5 / 20, box["y"] + 8)
    tip = page.locator(".map .tip strong")
    expect(tip).to_have_text(f"rounding of {format_size(MiB - 1)}")
    page.mouse.move(box["x"] + box["width"] * 5 / 20, box["y"] + 8)
    expect(tip).to_have_text("10.00 MiB")
    expect(page.locator(".map .tip")).to_contain_text("511 bytes more by rounding")
    colours = page.evaluate(
        """(parts) => {
          const canvas = document.querySelector(".map-canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 3, canvas.width, 1);
          return parts.map((part) => {
            const first = 4 * Math.round(canvas.width * part);
            return [...data.slice(first, first + 4)].join();
          });
        }""",
        [0.4, 0.525, 0.8],
    )
    assert len(set(colours)) == 2, "both blocks have a colour, rounding another"
    assert colours[0] == colours[2]


def show(page: Page, view: str) -> None:
    page.get_by_role("tab", name=view).click()


def test_frames_have_what_was_asked_for_in_and_below_them(open_page: Open, tmp_path: Path) -> None:
    rows = stacked({1: [10, 20], 2: [40], 3: [8], 0: [2]})
    page = open_page(f"{written(tmp_path, recording_of(rows, stacks=STACKS))}#event=5")
    show(page, "Call stacks")
    said = page.locator(".flame .said")
    expect(said).to_contain_text("80.00 MiB (100.0%) in 5 blocks live, 2.00 MiB of it without")
    canvas = page.locator(".flame-canvas")
    canvas.focus()
    for key, text in (
        ("ArrowDown", "/me/train.py:90 main: 70.00 MiB (87.5%) in 3 blocks"),
        ("ArrowDown", "torch/nn/modules/module.py:1 _call_impl: 70.00 MiB"),
        ("ArrowDown", "/me/model.py:20 forward: 40.00 MiB (50.0%) in 1 block, 40.00 MiB of it"),
        ("ArrowRight", "/me/model.py:10 forward: 30.00 MiB (37.5%) in 2 blocks"),
        ("ArrowUp", "module.py:1 _call_impl"),
    ):
        press(page, key)
        expect(said).to_contain_text(text)
    box = canvas.bounding_box()
    assert box is not None
    # The flame graph is 80 MiB wide. Its second row is train.py:90 with 70 MiB, then train.py:95
    # with 8 MiB.
    page.mouse.move(box["x"] + box["width"] * 74 / 80, box["y"] + 30)
    expect(said).to_contain_text("/me/train.py:95 main: 8.00 MiB")
    page.mouse.click(box["x"] + box["width"] * 74 / 80, box["y"] + 30)
    # The click made this function's part as wide as the whole graph.
    page.mouse.move(box["x"] + 20, box["y"] + 50)
    expect(said).to_contain_text("/me/tree.py:5 walk: 8.00 MiB")
    canvas.focus()
    press(page, "Escape", "ArrowDown")
    expect(said).to_contain_text("/me/train.py:90 main")


def test_the_table_of_frames_counts_recursion_once(open_page: Open, tmp_path: Path) -> None:
    rows = stacked({1: [10, 20], 2: [40], 3: [8]})
    page = open_page(f"{written(tmp_path, recording_of(rows, stacks=STACKS))}#event=4")
    show(page, "Call stacks")
    page.get_by_label("How call stacks are shown").select_option("table")
    table = page.locator(".frames")
    expect(table.locator("tbody tr")).to_have_count(6)
    cells = [row.inner_text().split("\t") for row in table.locator("tbody tr").all()]
    walk = next(row for row in cells if "walk" in row[-1])
    assert walk[:4] == ["8.00 MiB", "10.3%", "8.00 MiB", "1"]
    main = next(row for row in cells if "train.py:90" in row[-1])
    assert main[:4] == ["70.00 MiB", "89.7%", "\u2013", "3"]
    table.get_by_role("button", name="forward").first.click()
    expect(page.locator(".list .count")).to_have_text(re.compile("^1 of 4 live, 40.00 MiB"))


def test_the_flame_graph_is_of_the_moment_the_search_and_the_group(
    open_page: Open, tmp_path: Path
) -> None:
    rows = stacked({1: [10], 2: [40], 3: [8]})
    page = open_page(f"{written(tmp_path, recording_of(rows, stacks=STACKS))}#event=3")
    show(page, "Call stacks")
    said = page.locator(".flame .said")
    expect(said).to_contain_text("58.00 MiB (100.0%) in 3 blocks")
    page.get_by_label("Search blocks").fill("forward not 40 MiB")
    expect(said).to_contain_text("10.00 MiB (100.0%) in 1 block")
    page.get_by_label("Search blocks").fill("")
    page.get_by_role("button", name="One event back").click()
    expect(said).to_contain_text("50.00 MiB (100.0%) in 2 blocks")
    press(page, "2")
    page.locator(".legend").get_by_role("button", name="model.py:10 forward").click()
    expect(said).to_contain_text("10.00 MiB (100.0%) in 1 block")


def test_segments_are_on_top_of_each_other_from_when_they_are_taken(
    open_page: Open, tmp_path: Path
) -> None:
    rows: list[Row] = [(TAKE, BASE, 64 * MiB, 0, 0, 0)]
    rows += [(ALLOC, BASE + i * MiB, MiB, 0, 0, 0) for i in range(30)]
    rows.append((TAKE, BASE + 1024 * MiB, 32 * MiB, 0, 0, 0))
    rows += [(ALLOC, BASE + (1024 + i) * MiB, MiB, 0, 0, 0) for i in range(20)]
    rows += [(kind, BASE + i * MiB, MiB, 0, 0, 0) for i in range(30) for kind in (ASKED, DONE)]
    rows.append((GIVE, BASE, 64 * MiB, 0, 0, 0))
    rows += [(ALLOC, BASE + (1044 + i) * MiB, MiB, 0, 0, 0) for i in range(9)]
    page = open_page(f"{written(tmp_path, recording_of(rows))}#event=60&view=segments")
    said = page.locator(".segments .said")
    expect(said).to_contain_text("2 segments, 96.00 MiB; the line is what is live.")

    def heights(_: object = None) -> list[int]:
        """Returns the filled percentage of the graph's height, at three horizontal places."""
        found: list[int] = page.evaluate(
            """(places) => {
              const canvas = document.querySelector(".segments canvas");
              const [top, left, height] = [25, 62, canvas.height - 45];
              const picture = canvas.getContext("2d").getImageData(0, top, canvas.width, height);
              return places.map((part) => {
                const x = left + Math.round((canvas.width - left - 8) * part);
                let filled = 0;
                for (let y = 0; y < height; y++) {
                  if (picture.data[4 * (y * canvas.width + x) + 3] > 200) filled++;
                }
                return Math.round((100 * filled) / height);
              });
            }""",
            [0.1, 0.45, 0.97],
        )
        return found

    # 64 MiB are reserved at the first place, 96 MiB at the second, and 32 MiB at the third. The
    # axis ends at 1.04 times 96 MiB.
    for found, expected in zip(heights(), (64, 96, 32), strict=True):
        assert abs(found - 100 * expected / (96 * 1.04)) <= 3
    page.locator(".segments canvas[tabindex]").focus()
    press(page, "ArrowUp")
    expect(said).to_contain_text(f"Segment of 64.00 MiB at {BASE:#x}, default stream")
    press(page, "ArrowUp")
    expect(said).to_contain_text("taken at event 31; 20.00 MiB live in it now (62.5%)")
    press(page, "Enter")
    wait_for_value(page, 31, moment)
    press(page, "ArrowRight")
    wait_for_value(page, 32, moment)


def test_the_stack_of_a_free_is_beside_that_of_its_allocation(
    open_page: Open, tmp_path: Path
) -> None:
    rows: list[Row] = [(ALLOC, BASE, MiB, 0, 1, 0), (ALLOC, BASE + MiB, 512, 0, 2, 0),
                       (ASKED, BASE, MiB, 0, 4, 0), (DONE, BASE, MiB, 0, 4, 0)]  # fmt: skip
    page = open_page(f"{written(tmp_path, recording_of(rows, stacks=STACKS))}#event=1")
    page.locator(".list .row").first.click()
    asked = page.locator(".block .asked")
    expect(asked).to_have_count(2)
    allocated, freed = (one.inner_text().split() for one in asked.all())
    assert allocated[:4] == ["Allocated", "by", "/me/model.py:10", "forward"]
    assert freed == ["Freed", "by", "/me/train.py:99", "clean_up"]
    left, right = (one.bounding_box() for one in asked.all())
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"], "side by side"
    page.locator(".list .row").nth(1).click()
    expect(asked).to_have_count(1)  # no second stack, since this block is never freed


def test_a_failure_is_read_and_reached_without_a_pointer(open_page: Open, tmp_path: Path) -> None:
    rows = [*stacked({1: [10]}), (OOM, 5 * MiB, 90 * MiB, 0, 2, 0), *stacked({2: [3]})[1:]]
    page = open_page(written(tmp_path, recording_of(rows, stacks=STACKS)))
    failures = page.get_by_role("region", name="Failures")
    expect(failures).to_contain_text("90.00 MiB more was needed, the device had 5.00 MiB free.")
    summary = failures.locator("summary")
    expect(summary).to_have_text(re.compile(r"^asked for at .*model\.py:20 forward$"))
    button = failures.get_by_role("button", name="event 2")
    for _ in range(40):
        press(page, "Tab")
        if button.evaluate("one => one === document.activeElement"):
            break
    press(page, "Enter")
    wait_for_value(page, 2, moment)
    expect(page.locator(".legend .marks")).to_contain_text("✕ out of memory: 90.00 MiB more")
    press(page, "Tab", "Enter")
    expect(failures.locator(".stack li")).to_have_count(3)


def test_a_page_without_failures_says_nothing_of_them(open_page: Open, tmp_path: Path) -> None:
    page = open_page(written(tmp_path, recording_of(stacked({1: [1]}))))
    expect(page.get_by_role("region", name="Failures")).to_have_count(0)


def test_searches_with_or_not_parentheses_and_sizes(open_page: Open, tmp_path: Path) -> None:
    page = open_page(written(tmp_path, read_recording(RECORDING)))
    lifetimes = find_lifetimes(read_recording(RECORDING).devices[0])
    size = lifetimes.size[lifetimes.live_at(moment(page))].astype(np.int64)
    large, tiny = size > 100 * MiB, size < 1024
    two = np.abs(size - 2.25 * MiB) <= MiB / 200
    assert two.any()
    search, count = page.get_by_label("Search blocks"), page.locator(".list .count")
    for text, found in (
        ("> 100 MiB", large),
        ("> 100 MiB or < 1 KiB", large | tiny),
        ("not (>100MiB or <1KiB)", ~(large | tiny)),
        ("NOT > 100 MiB AND not <1 KiB", ~large & ~tiny),
        ("2.25 MiB", two),
        ("2.25MiB or > 100 MiB >= 1 GiB", two | (size >= 1024 * MiB)),
        (f"{int(size.max()):,} bytes", size == size.max()),
        ("nowhere or < 1 KiB", tiny),
        ('"nowhere or" or < 1 KiB', tiny),
        ('"nowhere or"', size < 0),
    ):
        search.fill(text)
        within = "" if found.all() else f" of {len(size)}"
        expected = re.compile(f"^{int(found.sum())}{within} live, ")
        expect(count, text).to_have_text(expected)
    problem = page.locator(".problem")
    for text, said in (
        ("> 1 MiB or", "something must stand on both sides of or"),
        ("not", "something must follow not"),
        ("(> 1 MiB", "the ( is never closed"),
        ("> 1 MiB)", "nothing opens the )"),
        ('"adam', 'the " is never closed'),
    ):
        search.fill(text)
        expect(problem).to_have_text(said)
        expect(search).to_have_attribute("aria-invalid", "true")
    search.fill("adam")
    expect(problem).to_have_text("")


def test_a_picked_block_stays_in_view_beside_its_card(open_page: Open, tmp_path: Path) -> None:
    page = open_page(written(tmp_path, read_recording(RECORDING)))
    page.locator(".list .row").nth(11).click()
    expect(page.locator(".block")).to_be_visible()

    def is_in_view() -> bool:
        found: bool = page.evaluate(
            """() => {
              const [row, rows] = [".row.picked", ".list .rows"].map((one) =>
                document.querySelector(one)?.getBoundingClientRect());
              return row && row.top >= rows.top - 1 && row.bottom <= rows.bottom + 1;
            }"""
        )
        return found

    wait_for(page, is_in_view)


def test_free_pieces_are_gone_through_by_key_and_by_touch(open_page: Open, tmp_path: Path) -> None:
    rows: list[Row] = [
        (TAKE, BASE, 20 * MiB, 0, 0, 0),
        (TAKE, BASE + 512 * MiB, 30 * MiB, 0, 0, 0),
        (ALLOC, BASE, 5 * MiB, 0, 0, 0),
        (ALLOC, BASE + 8 * MiB, 10 * MiB, 0, 0, 0),
    ]
    page = open_page(f"{written(tmp_path, recording_of(rows))}#event=3", has_touch=True)
    page.locator(".map-canvas").focus()
    tip = page.locator(".map .tip strong")
    for key, text in (
        ("PageDown", "fragment of 3.00 MiB"),
        ("PageDown", "fragment of 2.00 MiB"),
        ("PageDown", "free: 30.00 MiB"),
        ("PageDown", "free: 30.00 MiB"),
        ("PageUp", "fragment of 2.00 MiB"),
    ):
        press(page, key)
        expect(tip).to_have_text(text)
    press(page, "Tab")
    expect(page.locator(".map .tip")).to_be_hidden()
    page.get_by_label("Layout of the map").select_option("full")
    box = page.locator(".map-canvas").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] * 6.5 / 20, box["y"] + 8)
    expect(tip).to_have_text("fragment of 3.00 MiB")
