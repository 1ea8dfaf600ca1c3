"""Takes the screenshots of docs/view.md.

    python docs/images/take.py STACKS ONE OTHER FAILED

Each argument is a recording. STACKS has call stacks. ONE and OTHER are of one program under two
settings. FAILED is of a program that ran out of memory.
"""

from __future__ import annotations

import base64
import struct
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from playwright.sync_api import sync_playwright

from plimsoll.page.document import make_page
from plimsoll.page.run import prepare
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def read(path: str) -> Recording:
    """Returns a recording, named after its file without folder and endings."""
    name = Path(path).name.split(".")[0] + ".pickle"
    return replace(read_recording(path), name=name)


def timeline(page: Page) -> None:
    """Shows the whole page, with the pointer at the peak."""
    page.mouse.move(560, 150)


def lines(page: Page) -> None:
    """Shows live memory by source line, with one block chosen."""
    page.keyboard.press("2")
    page.keyboard.press("z")
    page.wait_for_timeout(100)
    page.locator(".list .row").nth(2).click()


def address_space(page: Page) -> None:
    """Shows the address space, with the pointer on a block."""
    page.keyboard.press("m")
    page.wait_for_timeout(100)
    page.mouse.move(300, 450)


def call_stacks(page: Page) -> None:
    """Shows live memory by call stack, and one block with both of its stacks."""
    page.get_by_role("tab", name="Call stacks").click()
    page.locator(".list .row").nth(3).click()


def segments(page: Page) -> None:
    """Shows segments over time, with one segment chosen."""
    page.get_by_role("tab", name="Segments").click()
    page.wait_for_timeout(100)
    page.locator(".segments canvas[tabindex]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")


def search(page: Page) -> None:
    """Shows a search; only the blocks that it finds stay in colour."""
    page.keyboard.press("2")
    page.keyboard.press("/")
    page.keyboard.type("forward > 20 MiB or optimizer not 48 MiB")


def keys(page: Page) -> None:
    """Shows the list of keys."""
    page.keyboard.press("?")


def two_runs(page: Page) -> None:
    """Shows two recordings side by side."""


def failure(page: Page) -> None:
    """Shows the moment at which memory ran out."""
    page.keyboard.press("o")
    page.keyboard.press("4")
    page.wait_for_timeout(100)
    slider = page.locator(".timeline canvas[role=slider]").bounding_box()
    assert slider is not None
    moment, last = (int(page.get_attribute("[role=slider]", f"aria-value{name}") or 0)
                    for name in ("now", "max"))  # fmt: skip
    place = 62 + (slider["width"] - 70) * (moment + 0.5) / (last + 1)
    page.mouse.move(slider["x"] + place, slider["y"] + 100)


_PIXELS = """
async (png) => {
  const bytes = Uint8Array.from(atob(png), (one) => one.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes]));
  const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  context.drawImage(picture, 0, 0);
  const { data } = context.getImageData(0, 0, picture.width, picture.height);
  let text = "";
  for (let i = 0; i < data.length; i += 8192) {
    text += String.fromCharCode(...data.subarray(i, i + 8192));
  }
  return [picture.width, picture.height, btoa(text)];
}
"""


def with_palette(browser: Browser, png: bytes) -> bytes:
    """Reduces a picture to 256 of its colours, which makes it two thirds smaller."""
    page = browser.new_page()
    width, height, text = page.evaluate(_PIXELS, base64.b64encode(png).decode())
    page.close()
    pixels = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, 4)[:, :3]
    colours, place, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    colours = colours.astype(np.int32)
    # The most frequent colours, then one by one the colour least like all chosen ones.
    chosen = np.argsort(-counts)[:128].tolist()
    distance = ((colours[:, None] - colours[chosen]) ** 2).sum(axis=2)
    while len(chosen) < min(256, len(colours)):
        chosen.append(int(distance.min(axis=1).argmax()))
        another = ((colours - colours[chosen[-1]]) ** 2).sum(axis=1)
        distance = np.minimum(distance, another[:, None])
    palette = colours[chosen].astype(np.uint8)
    nearest = ((colours[:, None] - colours[chosen]) ** 2).sum(axis=2).argmin(axis=1)
    rows = np.zeros((height, width + 1), dtype=np.uint8)
    rows[:, 1:] = nearest[place.reshape(height, width)].astype(np.uint8)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + chunk(b"PLTE", palette.tobytes())
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


WIDTHS: dict[int, tuple[int, Callable[[Page], None]]] = {
    390: (844, timeline),
    768: (1024, call_stacks),
    1440: (900, call_stacks),
    2560: (1440, lines),
}
"""The window's height and view, for each of the window's widths.

The picture of a window narrower than 1000 pixels shows the whole page.
"""


def take(
    browser: Browser, address: str, shot: Callable[[Page], None], width: int | None = None
) -> None:
    """Takes one view in both themes."""
    height = 800 if width is None else WIDTHS[width][0]
    for theme in ("light", "dark"):
        page = browser.new_page(
            viewport={"width": width or 1280, "height": height},
            color_scheme=theme,
        )
        page.goto(address)
        page.wait_for_selector("html[data-state=ready]", state="attached")
        shot(page)
        page.wait_for_timeout(300)
        name = f"view-{width or shot.__name__.replace('_', '-')}-{theme}.png"
        picture = page.screenshot(full_page=(width or 1280) < 1000)
        (HERE / name).write_bytes(with_palette(browser, picture))
        page.close()


def main() -> None:
    """Takes all screenshots."""
    stacks, one, other, failed = map(read, sys.argv[1:5])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for runs, shots in (
            ([stacks], [timeline, lines, address_space, call_stacks, segments, search, keys]),
            ([one, other], [two_runs]),
            ([failed], [failure]),
        ):
            page = Path(folder) / "page.html"
            page.write_text(make_page([prepare(run) for run in runs]).html)
            for shot in shots:
                take(browser, page.as_uri(), shot)
            if runs == [stacks]:
                for width, (_, shot) in WIDTHS.items():
                    take(browser, page.as_uri(), shot, width)
        browser.close()


if __name__ == "__main__":
    main()
