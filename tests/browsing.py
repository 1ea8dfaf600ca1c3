"""Opens pages of `plimsoll view` in a real browser."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from plimsoll.page.document import MOST_BYTES, make_page
from plimsoll.page.run import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
SECONDS = 10  # the longest wait for a condition
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
if not CHROMIUM.exists():
    pytest.skip(f"there is no {CHROMIUM}", allow_module_level=True)


class Open(Protocol):
    """Opens an address in a new window; see `opened_pages`."""

    def __call__(
        self,
        address: str,
        *,
        dark: bool = False,
        allowed: str | None = None,
        noted: str | None = None,
        **options: Any,
    ) -> Page:
        """Opens the address, and waits until the page is complete."""


def started_browser() -> Iterator[Browser]:
    """Is a fixture: yields a browser."""
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield started
        started.close()


def opened_pages(browser: Browser) -> Iterator[Open]:
    """Is a fixture: yields a function that opens pages.

    The test fails if a page raises an error, writes to the console, or requests an address other
    than its own. The page may request addresses that begin with `allowed`, and may write console
    messages that contain `noted`. `options` are those of a Playwright context, such as `viewport`.
    """
    contexts = []
    troubles: list[str] = []

    def start(
        address: str,
        *,
        dark: bool = False,
        allowed: str | None = None,
        noted: str | None = None,
        **options: Any,
    ) -> Page:
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = browser.new_context(color_scheme="dark" if dark else "light", **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))

        def on_console(said: Any) -> None:
            if noted is None or noted not in said.text:
                troubles.append(f"console: {said.text}")

        page.on("console", on_console)

        def on_request(request: Any) -> None:
            url = request.url.split("#")[0]
            if url != address.split("#")[0] and not (allowed and url.startswith(allowed)):
                troubles.append(f"request: {request.url}")

        page.on("request", on_request)
        page.goto(address)
        page.wait_for_selector("html[data-state=ready]", state="attached")
        return page

    yield start
    for context in contexts:
        context.close()
    assert troubles == [], troubles


def written(tmp_path: Path, *recordings: Any, most_bytes: int = MOST_BYTES) -> str:
    """Writes a page that shows the recordings. Returns the page's address."""
    page = tmp_path / "page.html"
    page.write_text(make_page([prepare(one) for one in recordings], most_bytes=most_bytes).html)
    return page.as_uri()


def moment(page: Page) -> int:
    """Returns the number of the selected event."""
    value = page.get_attribute(".timeline canvas[role=slider]", "aria-valuenow")
    assert value is not None
    return int(value)


def press(page: Page, *keys: str) -> None:
    """Presses keys one after another."""
    for key in keys:
        page.keyboard.press(key)


def wait_for(page: Page, holds: Callable[[], bool]) -> None:
    """Waits until a condition holds. Checks it at every animation frame of the page."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, f"not after {SECONDS} s"
        page.evaluate("() => new Promise(requestAnimationFrame)")


def wait_for_value(page: Page, expected: object, read: Callable[[Page], object]) -> None:
    """Waits until the page shows the expected value."""
    with suppress(AssertionError):
        wait_for(page, lambda: read(page) == expected)
    assert read(page) == expected


def wait_for_other(page: Page, before: object, read: Callable[[Page], object]) -> None:
    """Waits until the value that `read` returns differs from `before`."""
    wait_for(page, lambda: read(page) != before)


def window(page: Page) -> list[str]:
    """Returns the texts of the time axis's ticks; they change with the visible window."""
    found: list[str] = page.evaluate(
        """() => new Promise((done) => {
          const texts = [];
          const draw = CanvasRenderingContext2D.prototype.fillText;
          CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            texts.push(text);
            return draw.call(this, text, ...rest);
          };
          document.body.style.paddingRight = document.body.style.paddingRight ? "" : "1px";
          const look = () => {
            if (texts.length === 0) return requestAnimationFrame(look);
            CanvasRenderingContext2D.prototype.fillText = draw;
            done(texts);
          };
          look();
        })"""
    )
    return found
