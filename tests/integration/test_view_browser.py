"""Tests the page of `plimsoll view` in a browser: its contents, and the user's actions.

The tests also fail if the page requests an address that they do not allow (see `opened_pages`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from plimsoll.base.units import format_size
from plimsoll.page.document import make_page
from plimsoll.page.page_file import view
from plimsoll.page.run import prepare
from plimsoll.page.server import PageServer
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Mark, Recording
from tests.browsing import (
    expect,
    moment,
    opened_pages,
    press,
    started_browser,
    wait_for,
    wait_for_other,
    wait_for_value,
    window,
    written,
)  # fmt: skip
from tests.recordings import EXAMPLES
from tests.unit.view_histories import BASE, KiB, MiB, Row, recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.browsing import Open

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
FAILED = EXAMPLES / "gpt2_adamw_oom.pickle.gz"
HOSTILE = "</script><script>window.owned=1</script><img src=x onerror='window.owned=1'>"

browser = pytest.fixture(scope="module")(started_browser)
open_page = pytest.fixture(opened_pages)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("pages") / "gpt2.html"
    view(RECORDING, output=page)
    return page.as_uri()


def legend(page: Page) -> dict[str, str]:
    """Returns the legend's groups with their sizes.

    One call reads all of them, because the page may change between two calls.
    """
    pairs = page.locator(".legend tbody tr").evaluate_all(
        "rows => rows.map(row => [row.querySelector('th'), row.querySelector('td')]"
        ".map(cell => cell.innerText))"
    )
    return dict(pairs)


def test_it_opens_at_the_peak_and_says_what_was_live(open_page: Open, file: str) -> None:
    page = open_page(file)
    level = find_lifetimes(read_recording(RECORDING).devices[0]).level()
    assert moment(page) == int(np.argmax(level))
    head = page.inner_text(".moment")
    assert head.startswith(f"{format_size(int(level.max()))} live of 9.52 GiB reserved")
    assert "the peak" in head
    assert page.title() == "gpt2.html · plimsoll view".replace("gpt2.html", RECORDING.name)


def test_keys_move_the_moment_event_by_event(open_page: Open, file: str) -> None:
    page = open_page(file)
    level = find_lifetimes(read_recording(RECORDING).devices[0]).level()
    peak = moment(page)
    for keys, expected in (
        (["ArrowRight"], peak + 1), (["ArrowLeft", "ArrowLeft"], peak - 1),
        (["Shift+ArrowRight"], peak + 99), (["p"], peak), (["Shift+ArrowLeft"], peak - 100),
    ):  # fmt: skip
        press(page, *keys)
        wait_for_value(page, expected, moment)
        expect(page.locator(".moment strong")).to_have_text(
            f"{format_size(int(level[expected]))} live"
        )


def test_a_click_on_the_timeline_chooses_the_highest_moment_of_its_pixel(
    open_page: Open, file: str
) -> None:
    page = open_page(file)
    level = find_lifetimes(read_recording(RECORDING).devices[0]).level()
    box = page.locator(".timeline canvas[role=slider]").bounding_box()
    assert box is not None
    width = box["width"] - 62 - 8
    peak = moment(page)
    page.mouse.click(box["x"] + 62 + width * 0.5, box["y"] + 150)
    wait_for_other(page, peak, moment)
    events = len(level)
    column = int(0.5 * width)
    begin, end = (int((column + part) * events / round(width)) for part in (-1, 2))
    assert begin <= moment(page) <= end
    shown = level[moment(page)]
    inner = slice(int(column * events / width) + 1, int((column + 1) * events / width))
    assert shown >= level[inner].max()


def test_wheel_keys_and_brush_zoom_and_everything_comes_back(open_page: Open, file: str) -> None:
    page = open_page(file)
    whole = window(page)
    assert "14,000" in whole

    def is_whole() -> bool:
        return "14,000" in window(page)

    def is_part() -> bool:
        return not is_whole()

    page.mouse.move(500, 200)
    page.mouse.wheel(0, -900)
    wait_for(page, is_part)
    press(page, "0")
    wait_for(page, is_whole)
    press(page, "w", "w", "w", "w")
    wait_for(page, is_part)
    page.mouse.dblclick(500, 200)
    wait_for(page, is_whole)
    page.mouse.move(300, 200)
    page.mouse.down()
    page.mouse.move(340, 220, steps=4)
    page.mouse.up()
    wait_for(page, is_part)
    assert not any(tick.endswith(" s") for tick in window(page))
    press(page, "x")
    wait_for(page, lambda: any(tick.endswith(" s") for tick in window(page)))


def test_groups_at_a_moment_add_up_by_every_key(open_page: Open, tmp_path: Path) -> None:
    rows: list[Row] = [(int(Action.SEGMENT_ALLOC), BASE, 64 * MiB, 0, 0, 0)]
    for i in range(30):
        rows.append((int(Action.ALLOC), BASE + i * MiB, (i + 1) * 10 * KiB, i % 3, 0, 5 * KiB))
    page = open_page(written(tmp_path, recording_of(rows)))
    whole = format_size(sum(row[2] for row in rows[1:]))
    assert page.inner_text(".moment strong") == f"{whole} live"
    names = [
        button.inner_text()
        for button in page.locator(".toolbar .choices").first.locator("button").all()
    ]
    assert names == ["Category", "Source line", "Stream", "Size", "Tier"]
    press(page, "3")
    streams = {"default stream", "stream 0x1", "stream 0x2"}
    wait_for_value(page, streams, lambda page: set(legend(page)))
    press(page, "4")
    small = format_size(sum(10 * KiB * i for i in range(1, 7)))
    wait_for_value(page, small, lambda page: legend(page).get("under 64 KiB"))
    press(page, "5")
    shared = format_size(30 * 5 * KiB)
    wait_for_value(page, shared, lambda page: legend(page).get("shared"))


def test_blocks_are_sorted_searched_and_picked(open_page: Open, file: str) -> None:
    page = open_page(file)
    trace = read_recording(RECORDING).devices[0]
    lifetimes = find_lifetimes(trace)
    peak = int(np.argmax(lifetimes.level()))
    live = lifetimes[lifetimes.live_at(peak)]
    count = page.locator(".list .count")
    expect(count).to_have_text(re.compile(f"^{len(live)} live, "))
    first = page.locator(".list .row").first
    size = first.locator(".cell").first
    expect(size).to_have_text(format_size(int(live.size.max())))
    page.get_by_role("columnheader", name="Size").click()
    expect(size).to_have_text(format_size(int(live.size.min())))

    press(page, "/")
    page.keyboard.type(">100MiB")
    large = int((live.size > 100 * MiB).sum())
    expect(count).to_have_text(re.compile(f"^{large} of {len(live)} live, "))
    page.get_by_label("search the whole history").check()
    ever = int((lifetimes.size > 100 * MiB).sum())
    expect(count).to_have_text(re.compile(f"^{ever} of any time, "))
    page.get_by_label("search the whole history").uncheck()

    page.get_by_label("Search blocks").fill(hex(int(live.address[np.argmax(live.size)])))
    expect(count).to_have_text(re.compile("^1 of "))
    first.click()
    card = page.locator(".block")
    expect(card).to_contain_text(f"({int(live.size.max()):,} bytes)")
    start = int(live.start[np.argmax(live.size)])
    card.get_by_role("button", name=f"event {start:,}").click()
    wait_for_value(page, start, moment)
    press(page, "Escape")
    expect(card).to_be_hidden()
    assert page.get_by_label("Search blocks").input_value() == ""


def test_arrow_keys_go_through_the_list_and_the_map(open_page: Open, file: str) -> None:
    page = open_page(file)
    page.locator(".list .rows").focus()
    press(page, "ArrowDown")
    expect(page.locator(".row.picked")).to_have_count(1)
    title = page.locator(".block h2")
    before = title.inner_text()
    press(page, "ArrowDown", "ArrowDown", "ArrowDown")
    expect(title).not_to_have_text(before)
    peak = moment(page)
    page.locator(".map-canvas").focus()
    address = page.locator(".block dd").nth(1)
    addresses = [address.inner_text()]
    for _ in range(3):
        press(page, "ArrowRight")
        expect(address).not_to_have_text(addresses[-1])
        addresses.append(address.inner_text())
    assert len(set(addresses[1:])) == 3
    assert moment(page) == peak, "the arrow keys are the map's while it has the focus"


def test_a_stack_is_shown_where_there_is_one(open_page: Open, tmp_path: Path) -> None:
    stacks = {1: [("/x/site-packages/torch/nn/linear.py", 1, "forward"), ("/me/a.py", 7, "main")]}
    rows = [(int(Action.ALLOC), BASE, MiB, 0, 1, 0)]
    page = open_page(written(tmp_path, recording_of(rows, stacks=stacks)))
    page.locator(".list .row").first.click()
    expect(page.locator(".stack li")).to_have_count(2)
    frames = [item.inner_text().split() for item in page.locator(".stack li").all()]
    assert frames == [["torch/nn/linear.py:1", "forward"], ["/me/a.py:7", "main"]]
    assert page.locator(".stack li.here").inner_text().split() == ["/me/a.py:7", "main"]


def test_a_line_names_the_users_place_and_the_librarys(open_page: Open, tmp_path: Path) -> None:
    library = "/x/site-packages/lib/net.py"
    stacks = {1: [(library, 5, "forward"), (library, 9, "call"), ("/me/a.py", 7, "main")]}
    rows = [(int(Action.ALLOC), BASE, MiB, 0, 1, 0)]
    page = open_page(written(tmp_path, recording_of(rows, stacks=stacks)))
    row = page.locator(".list .row").first
    expect(row).to_contain_text("a.py:7 main → net.py:5 forward")
    row.click()
    expect(page.locator(".stack li.here")).to_have_count(2)
    places = [item.inner_text().split()[1] for item in page.locator(".stack li.here").all()]
    assert places == ["forward", "main"]


@pytest.mark.parametrize("width", [900, 1280, 2560])
def test_the_source_line_is_the_widest_column_and_cut_at_its_beginning(
    width: int, open_page: Open, tmp_path: Path
) -> None:
    stacks = {1: [(f"/me/{'a_long_name_of_a_file_' * 20}.py", 7, "main")]}
    rows = [(int(Action.ALLOC), BASE, MiB, 0, 1, 0)]
    page = open_page(written(tmp_path, recording_of(rows, stacks=stacks)))
    page.set_viewport_size({"width": width, "height": 900})
    row = page.locator(".list .row").first
    row.wait_for()
    cells = {
        each.get_attribute("class"): each.bounding_box() for each in row.locator(".cell").all()
    }
    widths = {name: box["width"] for name, box in cells.items() if box is not None}
    assert max(widths, key=lambda name: widths[name]) == "cell line cut-first"
    last = page.evaluate(
        """() => {
          const cell = document.querySelector(".list .row .cell.line");
          const text = cell.querySelector("bdi").firstChild;
          const range = document.createRange();
          range.setStart(text, text.length - 4);
          range.setEnd(text, text.length);
          const [end, box] = [range.getBoundingClientRect(), cell.getBoundingClientRect()];
          return end.left >= box.left && end.right <= box.right + 1;
        }"""
    )
    assert last, "the function's name is not in view"


def test_the_map_has_every_segment_and_block_to_scale(open_page: Open, tmp_path: Path) -> None:
    rows: list[Row] = [
        (int(Action.SEGMENT_ALLOC), BASE, 8 * MiB, 0, 0, 0),
        (int(Action.ALLOC), BASE, 2 * MiB, 0, 0, 0),
        (int(Action.ALLOC), BASE + 4 * MiB, 2 * MiB, 0, 0, 0),
    ]
    page = open_page(written(tmp_path, recording_of(rows)))
    # Each "m" switches the map to the next layout. The third layout draws each segment as a row of
    # full width.
    press(page, "ArrowRight", "ArrowRight", "ArrowRight", "m", "m")
    said = re.compile(r"^1 segment, 8\.00 MiB reserved: 4\.00 MiB live \(50\.0%\)")
    expect(page.locator(".map .caption")).to_have_text(said)
    expect(page.get_by_label("Layout of the map")).to_have_value("full")
    box = page.locator(".map-canvas").bounding_box()
    assert box is not None
    for eighth, words in ((1, "2.00 MiB"), (3, "fragment of 2.00 MiB"), (5, "2.00 MiB"),
                         (7, "fragment of 2.00 MiB")):  # fmt: skip
        page.mouse.move(box["x"] + box["width"] * eighth / 8, box["y"] + 8)
        expect(page.locator(".map .tip strong")).to_have_text(words)
    page.mouse.click(box["x"] + box["width"] * 5 / 8, box["y"] + 8)
    expect(page.locator(".block")).to_contain_text(hex(BASE + 4 * MiB))


def test_marks_are_found_by_key_and_explained_under_the_pointer(
    open_page: Open, tmp_path: Path
) -> None:
    page = open_page(written(tmp_path, read_recording(FAILED)))
    press(page, "o")
    trace = read_recording(FAILED).devices[0].load()
    failure = int(np.flatnonzero(trace.action == Action.OOM)[0])
    wait_for_value(page, failure, moment)
    press(page, "Shift+N")
    # The mark before the failure is PyTorch's retry: PyTorch freed cached memory and tried again.
    wait_for_value(page, failure - 1, moment)
    box = page.locator(".timeline canvas[role=slider]").bounding_box()
    assert box is not None
    place = 62 + (box["width"] - 70) * (failure + 0.5) / len(trace)
    page.mouse.move(box["x"] + place - 3, box["y"] + 120)
    expect(page.locator(".time .tip")).to_contain_text("out of memory: 1.54 GiB more was needed")


def test_marks_of_the_program_are_there(open_page: Open, tmp_path: Path) -> None:
    rows = [(int(Action.ALLOC), BASE + i * 512, 512, 0, 0, 0) for i in range(50)]
    marks = [Mark(10, 0, "step"), Mark(20, 0, "warm"), Mark(30, 0, "step")]
    page = open_page(written(tmp_path, recording_of(rows, marks=marks)))
    for key, expected in (("Shift+N", 30), ("Shift+N", 20), ("n", 30)):
        press(page, key)
        wait_for_value(page, expected, moment)


def test_both_themes_by_system_and_by_key(open_page: Open, file: str) -> None:
    light, dark = open_page(file), open_page(file, dark=True)
    white, black = "rgb(255, 255, 255)", "rgb(22, 27, 34)"
    expect(light.locator(".card").first).to_have_css("background-color", white)
    card = dark.locator(".card").first
    expect(card).to_have_css("background-color", black)
    press(dark, "t")
    expect(card).to_have_css("background-color", white)
    press(dark, "t")
    expect(card).to_have_css("background-color", black)


def test_text_can_be_read_in_both_themes(open_page: Open, file: str) -> None:
    for dark in (False, True):
        page = open_page(file, dark=dark)
        names = ("text", "text-2", "accent", "bad", "warn", "quiet", "panel")
        colours = page.evaluate(
            "(names) => names.map((n) => getComputedStyle(document.documentElement)"
            ".getPropertyValue('--' + n).trim())",
            names,
        )
        *texts, panel = map(luminance, colours)
        for name, text in zip(names[:-1], texts, strict=True):
            high, low = max(text, panel), min(text, panel)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, dark)
        bars = page.evaluate(
            "['all', 'program', 'library'].map((n) => getComputedStyle(document.documentElement)"
            ".getPropertyValue('--frame-' + n).trim())"
        )
        for bar in map(luminance, bars):
            high, low = max(texts[0], bar), min(texts[0], bar)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (bars, dark)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_everything_has_a_name_and_can_be_reached_by_tab(open_page: Open, file: str) -> None:
    page = open_page(file)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, canvas[tabindex], section")]
          .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() ||
            one.labels?.length)).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.className || document.activeElement.tagName")
        )
    assert {"layer", "map-canvas", "rows", "INPUT"} <= reached


def test_the_keys_are_explained(open_page: Open, file: str) -> None:
    page = open_page(file)
    press(page, "?")
    expect(page.locator("dialog")).to_be_visible()
    expect(page.locator("dialog")).to_contain_text("go to the peak")
    press(page, "?")
    expect(page.locator("dialog")).to_be_hidden()


def test_it_fits_a_laptop_without_scrolling(open_page: Open, file: str) -> None:
    page = open_page(file)
    size = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    assert size[0] <= 1280
    assert size[1] <= 800


def test_the_pictures_follow_their_room(open_page: Open, file: str) -> None:
    page = open_page(file)

    def sizes(page: Page) -> list[list[int]]:
        found: list[list[int]] = page.evaluate(
            """() => [...document.querySelectorAll("canvas")].filter((one) => one.clientWidth > 0)
              .map((one) => [one.clientWidth, one.clientHeight, one.width, one.height])"""
        )
        return found

    for change in ("notes", "window"):
        before = sizes(page)
        if change == "notes":
            page.locator(".notes summary").click()
        else:
            page.set_viewport_size({"width": 1000, "height": 700})
        wait_for_other(page, before, sizes)
        wait_for(page, lambda: all(one[:2] == one[2:] for one in sizes(page)))


def test_two_runs_are_on_one_scale(open_page: Open, tmp_path: Path) -> None:
    segment = (int(Action.SEGMENT_ALLOC), BASE, 256 * MiB, 0, 0, 0)
    first = (int(Action.ALLOC), BASE, 10 * MiB, 0, 0, 0)
    small = recording_of([(*segment[:2], 20 * MiB, 0, 0, 0), first], name="small.pickle")
    rows = [(int(Action.ALLOC), BASE + i * 64 * MiB, 64 * MiB, 0, 0, 0) for i in range(4)]
    rows.insert(0, segment)
    page = open_page(written(tmp_path, small, recording_of(rows, name="large.pickle")))
    assert page.title() == "small.pickle and large.pickle · plimsoll view"
    heads = [one.inner_text() for one in page.locator(".moment strong").all()]
    assert heads == ["10.00 MiB live", "256.00 MiB live"]
    row = page.locator(".legend tbody tr").first
    cells = [cell.inner_text() for cell in row.locator("td").all()]
    assert cells == ["10.00 MiB", "256.00 MiB", "+246.00 MiB"]
    ticks = window(page)
    assert ticks.count("256 MiB") == 2, "both have the larger one's height"
    scales = {one.inner_text() for one in page.locator(".views header .faint").all()}
    assert len(scales) == 1
    assert scales.pop().startswith("full width: ")
    first_slider, second_slider = page.locator("[role=slider]").all()
    before = first_slider.get_attribute("aria-valuenow")
    press(page, "b", "ArrowLeft")
    expect(second_slider).to_have_attribute("aria-valuenow", "3")
    assert first_slider.get_attribute("aria-valuenow") == before


def test_devices_can_be_chosen(open_page: Open, tmp_path: Path) -> None:
    small, large = (
        recording_of([(int(Action.ALLOC), BASE, size, 0, 0, 0)], devices=2).devices
        for size in (MiB, 3 * MiB)
    )
    page = open_page(written(tmp_path, Recording("two.pickle", [small[0], large[1]], {}, [])))
    live = page.locator(".moment strong")
    expect(live).to_have_text("1.00 MiB live")
    page.get_by_label("Device of two.pickle").select_option("1")
    expect(live).to_have_text("3.00 MiB live")


def test_hostile_names_stay_text(open_page: Open, tmp_path: Path) -> None:
    stacks = {1: [(f"/home/{HOSTILE}.py", 3, HOSTILE)]}
    rows = [(int(Action.ALLOC), BASE, MiB, 0, 1, 0), (int(Action.ALLOC), BASE + MiB, 9, 0, 0, 0)]
    marks = [Mark(1, 0, HOSTILE)]
    recording = recording_of(rows, stacks=stacks, marks=marks, name=HOSTILE.replace("/", "_"))
    page = open_page(written(tmp_path, recording))
    press(page, "2")
    page.locator(".list .row").first.click()
    page.mouse.move(400, 150)
    press(page, "/")
    page.keyboard.type("onerror")
    expect(page.locator(".list .count")).to_have_text(re.compile("^1 of 2 live"))
    expect(page.locator(".stack")).to_contain_text(HOSTILE)
    assert page.evaluate("window.owned") is None
    assert page.locator("img").count() == 0


def many_sizes() -> list[Row]:
    random = np.random.default_rng(1)
    rows: list[Row] = [(int(Action.SEGMENT_ALLOC), BASE, 64 << 30, 0, 0, 0)]
    for i in range(3000):
        row = (BASE + (i << 24), int(random.integers(1, 1 << 24)), 0, 0, 0)
        rows.append((int(Action.ALLOC), *row))
        if i % 3 == 0:
            rows += [(int(Action.FREE_REQUESTED), *row), (int(Action.FREE_COMPLETED), *row)]
    return rows


def test_what_is_summed_up_is_said_and_never_missing(open_page: Open, tmp_path: Path) -> None:
    recording = recording_of(many_sizes())
    whole = make_page([prepare(recording)])
    page = open_page(written(tmp_path, recording, most_bytes=len(whole.html) + 55_000))
    assert page.inner_text(".notes summary").startswith("Small blocks are summed up in this page.")
    page.locator(".notes summary").click()
    assert "plimsoll view --serve shows each of them" in page.inner_text(".notes")
    head = page.inner_text(".moment strong")
    level = find_lifetimes(recording.devices[0]).level()
    # The page gives one maximum for each span of events. Each span is a single event here, so the
    # maximum is exact.
    assert head == f"at most {format_size(int(level[moment(page)]))} live"
    assert "look like fragments here" in page.inner_text(".map .caption")
    assert ", without those under " in page.inner_text(".list .count")
    page.get_by_role("tab", name="Call stacks").click()
    expect(page.locator(".flame .said")).to_contain_text("blocks live, without those under ")
    page.get_by_role("tab", name="Segments").click()
    expect(page.locator(".segments .said")).to_contain_text("1 segment")
    page.locator(".segments canvas[tabindex]").focus()
    press(page, "ArrowUp")
    expect(page.locator(".segments .said")).to_contain_text(" %), without those under ")


def test_with_a_server_every_block_is_there(open_page: Open) -> None:
    recording = recording_of(many_sizes())
    lifetimes = find_lifetimes(recording.devices[0])
    with PageServer([prepare(recording)], most_bytes=0) as server:
        page = open_page(server.url, allowed=f"{server.url}blocks?")
        live = len(lifetimes.live_at(moment(page)))
        assert page.inner_text(".list .count").startswith(f"{live:,} live, ")
        assert page.inner_text(".notes summary").startswith("Complete, as long as the server")
        press(page, "/")
        page.keyboard.type("<64KiB")
        page.get_by_label("search the whole history").check()
        small = int((lifetimes.size < 64 * KiB).sum())
        expect(page.locator(".list .count")).to_have_text(re.compile(f"^{small} of any time, "))


def test_a_server_that_is_gone_is_missed(browser: Browser) -> None:
    with PageServer([prepare(recording_of(many_sizes()))], most_bytes=0) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("html[data-state=ready]", state="attached")
    press(page, "ArrowLeft")
    expect(page.locator("[role=alert]")).to_contain_text("does not answer any more")
    page.close()


def test_detail_from_blocks_is_what_the_overview_says(open_page: Open, tmp_path: Path) -> None:
    """Zooms in around the peak. Checks the live bytes that the page shows at three events."""
    random = np.random.default_rng(2)
    rows: list[Row] = []
    for i in range(70_000):
        row = (BASE + ((i % 50) << 24), int(random.integers(1, 1 << 20)), 0, 0, 0)
        rows += [(int(Action.ALLOC), *row), (int(Action.FREE_REQUESTED), *row)]
    recording = recording_of(rows)
    page = open_page(written(tmp_path, recording))
    level = find_lifetimes(recording.devices[0]).level()
    peak = int(np.argmax(level))
    assert moment(page) == peak
    press(page, *(["w"] * 25))
    wait_for(page, lambda: not {"20,000", "120,000"} & set(window(page)))
    box = page.locator(".timeline canvas[role=slider]").bounding_box()
    assert box is not None
    for part in (0.3, 0.5, 0.7):
        before = moment(page)
        page.mouse.click(box["x"] + 62 + (box["width"] - 70) * part, box["y"] + 200)
        wait_for_other(page, before, moment)
        shown = f"{format_size(int(level[moment(page)]))} live"
        expect(page.locator(".time .tip strong")).to_have_text(shown)
    assert abs(moment(page) - peak) < 1000
