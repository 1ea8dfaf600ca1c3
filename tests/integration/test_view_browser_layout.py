"""Tests the page of `plimsoll view` at many window widths, by touch, and by the keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
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
)
from tests.recordings import EXAMPLES
from tests.unit.view_histories import BASE, MiB, Row, recording_of

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

    from tests.browsing import Open

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
FAILED = EXAMPLES / "gpt2_adamw_oom.pickle.gz"
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}

browser = pytest.fixture(scope="module")(started_browser)
open_page = pytest.fixture(opened_pages)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("single"), read_recording(FAILED))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    one, other = read_recording(FAILED), read_recording(RECORDING)
    return written(tmp_path_factory.mktemp("pair"), one, other)


def settle(page: Page) -> None:
    """Waits until all drawing is done."""
    for _ in range(3):
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


_OVERFLOWING = """() => {
  const width = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll("body *")].filter((one) => {
    const box = one.getBoundingClientRect();
    const clip = one.closest(".toolbar .file")?.getBoundingClientRect();
    const isClipped = one.matches("select") && clip !== undefined && box.right > clip.right + 1;
    const isOut = box.right > width + 1 || box.left < -1;
    return box.width > 0 && (isOut || isClipped) && !one.closest(".tip");
  });
  return [document.documentElement.scrollWidth - width, out.map((one) => one.className)];
}"""

_CARDS = """() => [...document.querySelectorAll("main .card")]
  .filter((one) => one.clientWidth > 0)
  .map((one) => one.getBoundingClientRect())
  .map(({ left, right, top, bottom }) => [left, right, top, bottom].map(Math.round))"""

_CUT_WITHOUT_A_SIGN = """() =>
  [...document.querySelectorAll(".toolbar .file, .toolbar .file > span, .row .cell")]
    .filter((one) => one.scrollWidth > one.clientWidth)
    .filter((one) => {
      const style = getComputedStyle(one);
      return style.textOverflow !== "ellipsis" || style.display !== "block";
    })
    .map((one) => one.textContent)"""

_BLURRED = """() => [...document.querySelectorAll("canvas")]
  .filter((one) => one.clientWidth > 0)
  .filter((one) => one.width !== Math.round(one.clientWidth * devicePixelRatio)).length"""


@pytest.mark.parametrize(
    ("runs", "width", "height", "ratio"),
    [
        ("single", 320, 640, 1),
        ("single", 390, 844, 3),
        ("single", 640, 400, 2),  # a window of 1280x800 at a zoom of 200 %
        ("single", 768, 1024, 1),
        ("single", 960, 540, 2),  # a window of 1920x1080 at a zoom of 200 %
        ("single", 1280, 800, 1),
        ("single", 1440, 900, 1),
        ("single", 2560, 1440, 1),
        ("pair", 390, 844, 3),
        ("pair", 1440, 900, 1),
        ("pair", 2560, 1440, 1),
    ],
)
def test_nothing_is_cut_off_or_covered_at_any_width(
    open_page: Open, request: pytest.FixtureRequest, runs: str, width: int, height: int, ratio: int
) -> None:
    address = request.getfixturevalue(runs)
    page = open_page(
        address, viewport={"width": width, "height": height}, device_scale_factor=ratio
    )
    page.locator(".list .row").first.click()
    for view in ("Address space", "Call stacks", "Segments"):
        page.get_by_role("tab", name=view).first.click()
        settle(page)
        assert page.evaluate(_OVERFLOWING) == [0, []], view
        assert page.evaluate(_BLURRED) == 0, view
        assert page.evaluate(_CUT_WITHOUT_A_SIGN) == [], view
        cards = page.evaluate(_CARDS)
        for i, (left, right, top, bottom) in enumerate(cards):
            assert right - left >= 200, "wide enough to be read"
            assert bottom - top >= 100
            for other in cards[:i]:
                apart = (
                    left >= other[1] or right <= other[0] or top >= other[3] or bottom <= other[2]
                )
                assert apart, "no part covers another"
    if width <= 1000:
        tops = [top for _, _, top, _ in cards]
        assert tops == sorted(tops)
        assert len({left for left, *_ in cards}) == 1, "the parts stand on top of each other"
    elif height >= 800 and runs == "single":
        tall = page.evaluate("document.documentElement.scrollHeight")
        assert tall <= height, "a large window shows all at once"


def test_what_a_finger_is_to_hit_is_large_enough(open_page: Open, single: str) -> None:
    page = open_page(single, **PHONE)
    page.locator(".list .row").first.tap()
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, select, summary, .row, input")]
          .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])
          .filter(([, box]) => box.width > 0 && (box.height < 24 || box.width < 24))
          .map(([name]) => name).filter((name) => !name.includes("checkbox"))"""
    )
    assert small == []


def touch(session: CDPSession, kind: str, *places: tuple[float, float]) -> None:
    points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(places)]
    session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})


def timeline(page: Page) -> dict[str, Any]:
    box = page.locator(".timeline canvas[role=slider]").bounding_box()
    assert box is not None
    return {**box}


def test_a_finger_chooses_moves_and_zooms(open_page: Open, single: str) -> None:
    page = open_page(single, **PHONE)
    box = timeline(page)
    x, y = box["x"] + 62 + (box["width"] - 70) / 2, box["y"] + 120
    before = moment(page)
    page.touchscreen.tap(x, y)
    wait_for_other(page, before, moment)
    assert abs(moment(page) - 1617 / 2) < 30
    whole = window(page)
    session = page.context.new_cdp_session(page)
    # Two fingers move apart, which zooms.
    touch(session, "Start", (x - 30, y), (x + 30, y))
    for far in (50, 70, 90, 110):
        touch(session, "Move", (x - far, y), (x + far, y))
    touch(session, "End")
    wait_for_other(page, whole, window)
    zoomed = window(page)
    chosen = moment(page)
    # One finger moves sideways, which scrolls.
    touch(session, "Start", (x, y))
    for way in (20, 40, 60):
        touch(session, "Move", (x - way, y))
    touch(session, "End")
    wait_for_other(page, zoomed, window)
    assert moment(page) == chosen, "what moves the window chooses nothing"


def test_a_finger_that_moves_up_scrolls_the_page(open_page: Open, single: str) -> None:
    page = open_page(single, **PHONE)
    box = timeline(page)
    chosen = moment(page)
    session = page.context.new_cdp_session(page)
    x, y = box["x"] + 150, box["y"] + 150
    touch(session, "Start", (x, y))
    for way in (20, 50, 100, 150, 200):
        touch(session, "Move", (x, y - way))
    touch(session, "End")
    wait_for(page, lambda: page.evaluate("scrollY") > 100)
    assert moment(page) == chosen


def focused(page: Page) -> str:
    """Returns the name of the focused element, or says that this element has no outline."""
    name: str = page.evaluate(
        """() => {
          const one = document.activeElement;
          const style = getComputedStyle(one);
          if (one === document.body) return "nothing";
          if (style.outlineStyle === "none") return "no outline: " + one.outerHTML;
          return one.getAttribute("aria-label") || one.textContent || one.tagName;
        }"""
    )
    return name


def tab_to(page: Page, name: str) -> None:
    """Presses the Tab key until the element whose name contains `name` has the focus."""
    for _ in range(60):
        press(page, "Tab")
        now = focused(page)
        assert not now.startswith("no outline"), now
        if name in now:
            return
    raise AssertionError(f"the Tab key does not lead to {name}")


def test_the_whole_page_by_the_keyboard(open_page: Open, single: str) -> None:
    page = open_page(single)
    order = (
        "Source line", "Time", "Fit", "Zoom in", "All", "Search blocks", "Copy link", "Open",
        "Theme", "Keys", "event 748", "Timeline of live memory", "Mark before", "Next mark",
        "other", "Address space", "Layout of the map", "Map of the card", "Size",
        "Blocks; arrow keys",
    )  # fmt: skip
    for name in order:
        tab_to(page, name)
    # Go on with the keyboard: use the focused list of blocks.
    press(page, "ArrowDown", "ArrowDown")
    card = page.locator(".block")
    expect(card).to_be_visible()
    tab_to(page, "Close")
    press(page, "Tab")
    start = int(
        page.evaluate("document.activeElement.textContent").split()[1].strip(",").replace(",", "")
    )
    press(page, "Enter")
    wait_for_value(page, start, moment)
    settle(page)
    assert focused(page).startswith(f"event {start}"), "what was drawn anew has the focus still"
    tab_to(page, "About these figures")
    press(page, "Enter")
    expect(page.locator(".notes ul")).to_be_visible()
    tab_to(page, "event 748")
    press(page, "Enter")
    wait_for_value(page, 748, moment)
    expect(page.locator(".legend .marks")).to_contain_text("out of memory")
    tab_to(page, "Next mark")
    tab_to(page, "Address space")
    press(page, "ArrowRight")
    expect(page.get_by_role("tab", name="Call stacks")).to_be_focused()
    tab_to(page, "How call stacks are shown")
    tab_to(page, "What is live by call stack")
    tab_to(page, "Size")
    press(page, "Enter")
    expect(page.get_by_role("columnheader", name="Size")).to_have_attribute(
        "aria-sort", "ascending"
    )
    press(page, "v")
    expect(page.get_by_role("tab", name="Segments")).to_have_attribute("aria-selected", "true")
    press(page, "c", "c")
    expect(page.get_by_label("How call stacks are shown")).to_have_value("graph")
    press(page, "?")
    expect(page.locator("dialog")).to_be_visible()
    press(page, "Escape")
    expect(page.locator("dialog")).to_be_hidden()


def test_every_mark_is_read_as_it_is_reached(open_page: Open, tmp_path: Any) -> None:
    rows: list[Row] = [(int(Action.ALLOC), BASE + i * MiB, MiB, 0, 0, 0) for i in range(9)]
    rows.insert(4, (int(Action.OOM), 3 * MiB, 8 * MiB, 0, 0, 0))
    page = open_page(f"{written(tmp_path, recording_of(rows))}#event=0")
    marks = page.locator(".legend .marks")
    expect(marks).to_have_text("")
    press(page, "n")
    expect(marks).to_have_text(
        "✕ out of memory: 8.00 MiB more was needed, the device had 3.00 MiB free"
    )
    assert marks.get_attribute("role") == "status", "a reader says it"
    page.get_by_role("button", name="One event on").click()
    expect(marks).to_have_text("")
