"""Tests the documentation site: it loads only its own files; search and copy buttons work.

`make docs` builds the tested site.
"""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Generic

from tests.apart import ROOT
from tests.browsing import expect, started_browser
from tests.pages import COMMAND, DOCS, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

SITE = ROOT / "build" / "site"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
DOCUMENTS = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
ELSEWHERE = re.compile(r"^\s*(?:\w+:)?//")
LOADED_BY_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:\w+:)?//[^\"')\s]+)")
LOADING = {"src", "srcset", "poster", "data"}
"""HTML attributes whose addresses a browser loads, whatever the element."""

needs_the_site = pytest.mark.skipif(not PAGES, reason="`make docs` builds the site")
browser = pytest.fixture(scope="module")(started_browser)


class Loads(HTMLParser):
    """Collects the addresses that a browser loads when it shows a page's HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.footer: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADING or (tag, name) == ("link", "href"):
                self.addresses.append(value or "")
            if name == "style":
                self.addresses += LOADED_BY_CSS.findall(value or "")
            if name == "class" and "mermaid" in (value or "").split():
                self.addresses.append("//unpkg.com: the theme loads mermaid's script from there")
            if name == "class" and "md-footer__link" in (value or ""):
                self.footer |= set((value or "").split())


def loads(page: str) -> Loads:
    found = Loads()
    found.feed((SITE / page).read_text(encoding="utf-8"))
    return found


@needs_the_site
def test_no_page_loads_anything_from_elsewhere() -> None:
    found = {
        (page, address)
        for page in PAGES
        for address in loads(page).addresses
        if ELSEWHERE.match(address)
    }
    assert found == set()


@needs_the_site
def test_no_style_sheet_or_picture_loads_anything_from_elsewhere() -> None:
    sheets = [*SITE.rglob("*.css"), *SITE.rglob("*.svg")]
    assert len(sheets) > 3
    found = {
        (path.name, address)
        for path in sheets
        for address in LOADED_BY_CSS.findall(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@needs_the_site
@pytest.mark.parametrize("folder", ["", "zh/"])
def test_a_page_leads_to_the_previous_and_the_next_one(folder: str) -> None:
    both = {"md-footer__link--prev", "md-footer__link--next"}
    assert both <= loads(f"{folder}install/index.html").footer
    assert both & loads(f"{folder}index.html").footer == {"md-footer__link--next"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_highlighter_knows_commands_from_output(document: str) -> None:
    """The copy button copies text that the highlighter marks neither as prompt nor as output."""
    lexer = get_lexer_by_name("console")
    for block in blocks((DOCS / document).read_text(encoding="utf-8")):
        if block.language == "console":
            tokens = list(lexer.get_tokens(block.text))
            copied = "".join(
                text for kind, text in tokens if kind not in (Generic.Prompt, Generic.Output)
            )
            assert copied.split() == " ".join(commands(block.text)).split(), block.text


def commands(console: str) -> list[str]:
    """Returns the commands of a console block, without their prompts."""
    return [match[1] for match in COMMAND.finditer(console)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serves the site. Yields its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """Yields a browser window, and checks that its page makes no requests to other servers."""
    requests: list[str] = []

    def take(route: Route) -> None:
        if route.request.url.startswith(address):
            route.continue_()
        else:
            requests.append(route.request.url)
            route.abort()

    context = browser.new_context(base_url=address)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    context.route("**/*", take)
    yield context.new_page()
    context.close()
    assert requests == []


@needs_the_site
@pytest.mark.long
def test_pages_without_a_network_are_whole(page: Page) -> None:
    for path in PAGES:
        page.goto(path)
        broken = "pictures => pictures.filter(one => one.complete && !one.naturalWidth).length"
        assert page.locator("article img:visible").evaluate_all(broken) == 0, path
        assert page.locator("[data-md-component=search-query]").count() == 1, path


@needs_the_site
@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "words", "found"),
    [
        ("zh/", "碎片", "zh/tour/preallocation/"),
        ("zh/", "共享内存", "zh/predict/"),
        ("zh/", "预测", "zh/predict/"),
        ("zh/", "显存碎片", "zh/tour/preallocation/"),
        ("", "fragments", "how-it-works/"),
        ("", "shared memory", "tiers/"),
    ],
)
def test_the_search_finds_pages_of_the_readers_language(
    page: Page, address: str, folder: str, words: str, found: str
) -> None:
    page.goto(folder)
    page.locator("[data-md-component=search-query]").click()
    page.keyboard.insert_text(words)
    first = page.locator(".md-search-result__item:nth-child(-n + 3) > a")
    expect(first.and_(page.locator(f"[href^='{address}{found}']")).first).to_be_attached()
    places = page.locator(".md-search-result__item > a").evaluate_all("all => all.map(a => a.href)")
    assert {place.startswith(f"{address}zh/") for place in places} == {folder == "zh/"}


@needs_the_site
@pytest.mark.long
@pytest.mark.parametrize("document", ["tutorial.md", "serving.md", "predict.zh.md"])
def test_copying_takes_commands_without_prompts_and_output(page: Page, document: str) -> None:
    name = document.removesuffix(".md").removesuffix(".zh")
    page.goto(f"zh/{name}/" if ".zh." in document else f"{name}/")
    expected = [
        "\n".join(commands(block.text))
        for block in blocks((DOCS / document).read_text(encoding="utf-8"))
        if block.language == "console"
    ]
    shown = page.locator(".language-console")
    expect(shown).to_have_count(len(expected))
    for number, text in enumerate(expected):
        shown.nth(number).get_by_role("button").click()
        assert page.evaluate("navigator.clipboard.readText()") == text
    expect(page.locator(".language-text button:visible")).to_have_count(0)
