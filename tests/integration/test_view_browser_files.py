"""Tests the page of `plimsoll view` in a browser: links into the page, and files added to it."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import format_size
from plimsoll.page.run import prepare
from plimsoll.page.server import PageServer
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
from tests.recordings import EXAMPLES
from tests.unit.view_histories import BASE, MiB, Row, recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import FileChooser, Page

    from tests.browsing import Open

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
FAILED = EXAMPLES / "gpt2_adamw_oom.pickle.gz"
ALLOC, ASKED, DONE = (
    int(one) for one in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
)

browser = pytest.fixture(scope="module")(started_browser)
open_page = pytest.fixture(opened_pages)


def few_blocks(count: int = 6, size: int = MiB) -> list[Row]:
    return [(ALLOC, BASE + i * size, size, 0, 0, 0) for i in range(count)]


def test_the_address_follows_and_leads_back(open_page: Open, tmp_path: Path) -> None:
    address = written(tmp_path, read_recording(RECORDING))
    page = open_page(address)
    assert page.url == address, "nothing is written before anything is done"
    press(page, "2", "v", "Shift+ArrowLeft")
    page.locator(".list .row").nth(2).click()
    title = page.locator(".block h2")
    expect(title).to_be_visible()
    chosen = moment(page)
    link = re.compile(rf"#event={chosen}&block=\d+@0x[0-9a-f]+&by=line&view=flame$")
    wait_for(page, lambda: link.search(page.url) is not None)
    other = open_page(page.url)
    assert moment(other) == chosen
    expect(other.locator(".block dl")).to_have_text(
        page.locator(".block dl").inner_text(), use_inner_text=True
    )
    expect(other.get_by_role("tab", name="Call stacks")).to_have_attribute("aria-selected", "true")
    expect(other.get_by_role("button", name="Source line")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(other.locator(".row.picked")).to_have_count(1)


def test_another_link_on_the_same_page_is_followed(open_page: Open, tmp_path: Path) -> None:
    page = open_page(f"{written(tmp_path, recording_of(few_blocks()))}#event=3")
    assert moment(page) == 3
    page.evaluate("location.hash = '#event=1'")
    wait_for_value(page, 1, moment)


def test_a_link_finds_what_was_there_before_the_first_event(
    open_page: Open, tmp_path: Path
) -> None:
    rows = [
        *few_blocks(2),
        (ASKED, BASE + 9 * MiB, 512, 0, 0, 0),
        (DONE, BASE + 9 * MiB, 512, 0, 0, 0),
    ]
    address = written(tmp_path, recording_of(rows))
    page = open_page(f"{address}#event=1&block=before@{BASE + 9 * MiB:#x}")
    expect(page.locator(".block dl")).to_contain_text("before the first event")
    assert moment(page) == 1


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("#event=6", "The link names event 6; this history has events 0 to 5."),
        ("#event=-1", "The link names event -1; this history has events 0 to 5."),
        ("#event=<b>x", "The link names event <b>x; this history has events 0 to 5."),
        ("#event=1&block=1@0x77", "The link names a block that is not in this history: 1@0x77."),
        ("#block=99@0x77", "The link names a block that is not in this history: 99@0x77."),
        ("#block=here", "The link names a block that is not in this history: here."),
        ("#device=4", "The link names device 4, which is not in this history."),
    ],
)
def test_a_link_to_what_is_not_there_says_so(
    open_page: Open, tmp_path: Path, link: str, said: str
) -> None:
    page = open_page(written(tmp_path, recording_of(few_blocks())) + link)
    expect(page.get_by_role("alert")).to_contain_text(said)
    page.get_by_role("alert").get_by_role("button", name="Close").click()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_link_has_both_runs_and_their_devices(open_page: Open, tmp_path: Path) -> None:
    address = written(tmp_path, recording_of(few_blocks(), devices=2), recording_of(few_blocks()))
    page = open_page(f"{address}#event=2&device=1&B.event=4")
    sliders = page.locator("[role=slider]")
    expect(sliders.nth(0)).to_have_attribute("aria-valuenow", "2")
    expect(sliders.nth(1)).to_have_attribute("aria-valuenow", "4")
    press(page, "ArrowLeft")
    wait_for(page, lambda: "#event=1&device=1&B.event=4&" in page.url)


def test_the_link_is_copied(open_page: Open, tmp_path: Path) -> None:
    address = written(tmp_path, recording_of(few_blocks()))
    page = open_page(address, permissions=["clipboard-read", "clipboard-write"])
    press(page, "ArrowLeft", "l")
    expect(page.locator(".notice")).to_have_text("The link is copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{address}#event=4&by=category&view=map"


def test_where_nothing_may_be_copied_the_address_is_named(open_page: Open, tmp_path: Path) -> None:
    page = open_page(written(tmp_path, recording_of(few_blocks())))
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    press(page, "l")
    expect(page.locator(".notice")).to_contain_text("The address of this page is the link")


def drop(page: Page, name: str, content: bytes) -> None:
    """Drags a file onto the page, and drops it."""
    page.evaluate(
        """([name, content]) => {
          const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([bytes], name));
          for (const kind of ["dragover", "drop"]) {
            document.body.dispatchEvent(
              new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }),
            );
          }
        }""",
        [name, base64.b64encode(content).decode()],
    )


def live(page: Page) -> list[str]:
    return [one.inner_text() for one in page.locator(".moment strong").all()]


def made(tmp_path: Path, name: str, size: int) -> bytes:
    """Returns the bytes of a page that shows one block."""
    folder = tmp_path / name
    folder.mkdir()
    written(folder, recording_of(few_blocks(1, size), name=name))
    return (folder / "page.html").read_bytes()


def test_pages_are_dropped_beside_the_run_and_chosen(open_page: Open, tmp_path: Path) -> None:
    page = open_page(written(tmp_path, recording_of(few_blocks(1), name="first.pickle")))
    press(page, "2")
    drop(page, "second.html", made(tmp_path, "second.pickle", 2 * MiB))
    wait_for_value(page, ["1.00 MiB live", "2.00 MiB live"], live)
    expect(page.get_by_role("button", name="Source line")).to_have_attribute("aria-pressed", "true")
    drop(page, "third.html", made(tmp_path, "third.pickle", 3 * MiB))
    wait_for_value(page, ["1.00 MiB live", "3.00 MiB live"], live)
    page.get_by_label("Run A").select_option(label="A: second.pickle")
    wait_for_value(page, ["2.00 MiB live", "3.00 MiB live"], live)
    page.get_by_label("Run A").select_option(label="A: third.pickle")
    wait_for_value(page, ["3.00 MiB live", "2.00 MiB live"], live)
    page.get_by_label("Run A").select_option(label="A: second.pickle")
    wait_for_value(page, ["2.00 MiB live", "3.00 MiB live"], live)
    page.get_by_label("Run B").select_option(label="compare with …")
    wait_for_value(page, ["2.00 MiB live"], live)
    page.get_by_label("Run B").select_option(label="B: first.pickle")
    wait_for_value(page, ["2.00 MiB live", "1.00 MiB live"], live)
    # The earlier page is gone, and so are its keyboard shortcuts.
    expect(page.locator("main")).to_have_count(1)
    press(page, "v")
    expect(page.get_by_role("tab", name="Call stacks").first).to_have_attribute(
        "aria-selected", "true"
    )


def test_files_are_opened_from_the_keyboard(open_page: Open, tmp_path: Path) -> None:
    page = open_page(written(tmp_path, recording_of(few_blocks(1))))
    file = tmp_path / "second.html"
    file.write_bytes(made(tmp_path, "second.pickle", 5 * MiB))
    choosers: list[FileChooser] = []
    page.on("filechooser", lambda chooser: choosers.append(chooser))

    def is_asked() -> bool:
        press(page, "f")  # a browser that has just started ignores the first key
        return len(choosers) > 0

    wait_for(page, is_asked)
    choosers[0].set_files(file)
    wait_for_value(page, ["1.00 MiB live", "5.00 MiB live"], live)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.pickle.gz", b"\x1f\x8b", "Recordings can be opened where plimsoll view --serve"),
        ("cat.html", b"<!doctype html><p>", "cat.html is no page of plimsoll view's."),
        ("cut.html", b'<!doctype html><script id="data">{"format', "cut.html is damaged."),
        ("odd.html", b'<!doctype html><script id="data">{"format":2,"runs":[{}]}</script>',
         "odd.html is damaged."),
        ("old.html", b'<!doctype html><script id="data">{"format":1}</script>',
         "old.html was written by another version of plimsoll"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_shown_says_why(
    open_page: Open, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    page = open_page(written(tmp_path, recording_of(few_blocks(1))))
    drop(page, name, content)
    expect(page.get_by_role("alert")).to_contain_text(said)
    assert live(page) == ["1.00 MiB live"], "what was shown is still shown"


def test_nothing_in_a_dropped_page_runs(open_page: Open, tmp_path: Path) -> None:
    address = written(tmp_path, recording_of(few_blocks(1)))
    page = open_page(address, noted="Executing inline event handler violates")
    hostile = made(tmp_path, "second.pickle", 2 * MiB) + (
        b"<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
        b"<meta http-equiv=refresh content='0; url=https://example.invalid/'>"
    )
    drop(page, "hostile.html", hostile)
    wait_for_value(page, ["1.00 MiB live", "2.00 MiB live"], live)
    assert page.evaluate("window.owned") is None


def test_a_served_page_takes_recordings(open_page: Open) -> None:
    level = find_lifetimes(read_recording(RECORDING).devices[0]).level()
    with PageServer([prepare(recording_of(few_blocks(2)))], most_bytes=0) as server:
        page = open_page(server.url, allowed=server.url, noted="status of 400")
        drop(page, "gpt2 <b>.pickle.gz", RECORDING.read_bytes())
        wait_for_value(page, ["2.00 MiB live", f"{format_size(int(level.max()))} live"], live)
        expect(page.locator(".time h2").nth(1)).to_have_text("B: gpt2 <b>.pickle.gz")
        # The server provides the dropped run's figures, as it does for the first run.
        press(page, "b", "ArrowRight")
        after = f"{format_size(int(level[int(level.argmax()) + 1]))} live"
        wait_for_value(page, ["2.00 MiB live", after], live)
        drop(page, "run.pickle", b"no pickle")
        expect(page.get_by_role("alert")).to_contain_text("run.pickle: ")
