"""Tests, in a browser, the page that compares ranks: opened as a file, and served over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from plimsoll.explanation.ranks.view_ranks import serve_ranks, view_ranks
from tests.browsing import Open, expect, opened_pages, press, started_browser, wait_for_value
from tests.made_ranks import Rank, history_of, program_of, write_rank
from tests.recordings import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

browser = pytest.fixture(scope="module")(started_browser)
open_page = pytest.fixture(opened_pages)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes recordings of four ranks; rank 2 takes more memory than the others."""
    made = tmp_path_factory.mktemp("ranks") / "job"
    made.mkdir()
    program = program_of(EXAMPLES / "gpt2_adamw.pickle.gz")
    for rank in range(4):
        history = history_of(program, Rank(8_000, fault="full" if rank == 2 else None, seed=5))
        write_rank(made / f"rank{rank}.plim", history, rank=rank, world_size=4, seed=rank)
    return made


def chosen(page: Page) -> str | None:
    return page.get_attribute("canvas", "aria-valuetext")


@pytest.mark.long
def test_keys_choose_a_rank_and_open_it(open_page: Open, folder: Path) -> None:
    result = view_ranks(folder)
    assert [*result.rank_pages] == [0, 1, 2, 3]
    address = (folder.parent / "job.html").as_uri()
    page = open_page(address, allowed=(folder.parent / "job").as_uri())
    expect(page.locator("h1")).to_contain_text("Rank 2 of 4 (node0) is fuller than its group")
    page.get_by_role("button", name="Rank 2 is fuller").click()
    wait_for_value(page, True, lambda page: (chosen(page) or "").startswith("Rank 2 on node0"))
    press(page, "ArrowUp", "ArrowRight")
    wait_for_value(page, True, lambda page: (chosen(page) or "").startswith("Rank 1 on node0"))
    press(page, "Enter")
    page.wait_for_selector("html[data-state=ready] .timeline", state="attached")
    assert page.url.endswith("/job/rank1.html")


@pytest.mark.long
def test_a_server_opens_each_rank(open_page: Open, folder: Path) -> None:
    with serve_ranks(folder) as server:
        page = open_page(server.url, allowed=server.url)
        page.locator("canvas").focus()
        press(page, "End", "Enter")
        page.wait_for_selector("html[data-state=ready] .timeline", state="attached")
        expect(page.locator("body")).to_contain_text("rank3.plim")
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{server.url}rank?number=9")


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (390, False),
        (1280, True),
        *(
            pytest.param(width, dark, marks=pytest.mark.long)
            for width, dark in [(390, True), (768, False), (768, True), (1280, False)]
        ),
        *(pytest.param(2560, dark, marks=pytest.mark.long) for dark in [False, True]),
    ],
)
def test_nothing_is_cut_off_at_any_width(
    open_page: Open, folder: Path, width: int, dark: bool
) -> None:
    view_ranks(folder, output=folder.parent / "wide.html", force=True)
    address = (folder.parent / "wide.html").as_uri()
    page = open_page(address, dark=dark, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    drawn = page.evaluate(
        """() => {
          const canvas = document.querySelector("canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    assert drawn > 8
