"""Tests that outputs in the documentation are real, and that a reader can follow the pages."""

from __future__ import annotations

import os
import re
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from tests import article_cases
from tests.apart import ROOT
from tests.pages import (
    COMMAND,
    DOCS,
    SHOWN,
    Block,
    agrees,
    blocks,
    in_chinese,
    is_shown,
    pages,
    renewed,
    run,
)

torch = pytest.importorskip("torch")

QUICK = {"which-line-leaks.md"}
"""Pages that are always tested. Every other page takes 15 seconds or more."""
KINDS = {"console", "csv", "diff", "python", "text", "toml"}
ON_A_CARD = {"run": "--simulate", "predict": "--gpu", "fit": "--gpu"}
"""For each verb: the option whose value is the card's name."""
TRANSLATED = [
    page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if in_chinese(page).exists()
]
IN_CHINESE = [
    *(page for page in pages() if page.name not in ("comparisons.md", "explain.md")),
    *(DOCS / f"{name}.md" for name in ("index", "install", "limits", "predict", "serving", "view")),
]
TOUR = {
    "allocation.md": article_cases.MECHANISM,
    "managing.md": article_cases.TUTORIAL,
    "nvidia-smi.md": article_cases.SMI,
    "preallocation.md": article_cases.PREALLOCATION,
    "windows.md": article_cases.WINDOWS,
}
HEADING = re.compile(r"^##+ (.+)$", re.M)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.skipif(
    not is_shown(torch.__version__), reason="the pages show what another version of PyTorch takes"
)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=name_of(page), marks=() if page.name in QUICK else (pytest.mark.long,)
        )
        for page in pages()
    ],
)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    wrong = [step for step in run(page, tmp_path) if not step.is_right]
    for step in wrong[:1]:
        pytest.fail(
            f"{name_of(page)}: status {step.status}, of\n{step.what}\nshown:\n{step.shown}\n"
            f"printed:\n{step.printed}\n{len(wrong)} differ; to take over what is printed now: "
            f"python -m tests.pages {name_of(page)}",
            pytrace=False,
        )


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_has_only_blocks_that_are_run_or_pictures(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    assert {block.language for block in found} <= KINDS
    assert len(re.findall("^```", page.read_text("utf-8"), re.M)) == 2 * len(found)
    for block in found:
        if block.language == "console":
            assert block.text.startswith("$ "), block.text


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_each_program_has_a_name_and_the_next_block_runs_it(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    for block, after in zip_longest(found, found[1:]):
        if block.language == "python":
            assert block.title, block.text
            assert Path(block.title).stem not in sys.stdlib_module_names, block.title
            assert after is not None, block.title
            assert after.language == "console"
            assert block.title in after.text


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_each_command_names_its_card(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        for command, _ in COMMAND.findall(block.text if block.language == "console" else ""):
            verb = re.search(r"\bplimsoll (\w+)", command)
            assert ON_A_CARD.get(verb[1] if verb else "", "") in command, command


@pytest.mark.parametrize("page", [page for page in pages() if page.stem != "tutorial"], ids=name_of)
def test_a_page_says_how_it_is_followed(page: Path) -> None:
    places = [page, *([in_chinese(page)] if in_chinese(page).exists() else [])]
    for place in places:
        if blocks(place.read_text(encoding="utf-8")):
            start = place.read_text("utf-8").partition("\n## ")[0]
            name = "tutorial.md" if place == page else "tutorial.zh.md"
            assert f"{name})" in start, name_of(place)


def test_the_tutorial_names_the_pytorch_of_the_outputs() -> None:
    for place in (ROOT / "docs" / "tutorial.md", ROOT / "docs" / "tutorial.zh.md"):
        assert f"PyTorch {SHOWN}" in place.read_text(encoding="utf-8")


def what_is_run(page: Path) -> list[tuple[str, str | None, int, str]]:
    found: list[Block] = blocks(page.read_text(encoding="utf-8"))
    return [(each.language, each.title, each.status, without_comments(each)) for each in found]


def without_comments(block: Block) -> str:
    """Returns the text of a block, without the comments of one that is not run.

    These comments explain commands, so each page has them in its own language.
    """
    is_run = block.language in KINDS
    return block.text if is_run else re.sub(r" +# .*$", "", block.text, flags=re.M)


@pytest.mark.parametrize("page", TRANSLATED, ids=name_of)
def test_the_page_in_chinese_has_the_same_blocks_and_so_they_are_run(page: Path) -> None:
    assert what_is_run(in_chinese(page)) == what_is_run(page)


@pytest.mark.parametrize("page", IN_CHINESE, ids=name_of)
def test_the_pages_for_everybody_are_there_in_chinese(page: Path) -> None:
    assert page in TRANSLATED


def words(heading: str) -> str:
    return re.sub(r"[*`\s]|\{.*\}", "", heading)


@pytest.mark.parametrize("language", [".md", ".zh.md"])
@pytest.mark.parametrize("page", TOUR)
def test_the_tour_goes_through_an_article_section_by_section(page: str, language: str) -> None:
    folder = os.environ.get("PLIMSOLL_ARTICLES")
    if not folder:
        pytest.skip("set PLIMSOLL_ARTICLES to the folder with the articles")
    article = (Path(folder) / f"{TOUR[page]}.txt").read_text(encoding="utf-8")
    prose = re.sub(r"^[ ]*```.*?^[ ]*```", "", article, flags=re.M | re.S)
    place = (ROOT / "docs" / "tour" / page).with_suffix(language)
    shown = HEADING.findall(place.read_text(encoding="utf-8"))
    assert [title for title in shown if words(title) not in words(prose)] == []
    sections = [
        words(title) for title in HEADING.findall(prose) if title.strip("* ") != "Reference:"
    ]
    assert [words(title) for title in shown] == sections or not sections


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("1\n2\n", "1\n2\n", True),
        ("1\n", "1\n2\n", False),
        ("1\n…\n", "1\n2\n3\n", True),
        ("…\n3\n", "1\n2\n3\n", True),
        ("…\n2\n", "1\n2\n3\n", False),
        ("took … s\n", "took 1.5 s\n", True),
        ("took … s\n", "took\n1.5 s\n", False),
        ("", "", True),
        ("", "1\n", False),
        ("1.5\n", "105\n", False),
    ],
)
def test_an_ellipsis_stands_for_what_is_left_out(shown: str, printed: str, is_same: bool) -> None:
    assert agrees(shown, printed) is is_same


def test_what_is_shown_anew_keeps_what_was_left_out() -> None:
    assert renewed("old\n…\nlast\n", "new\nmore\nlast\n") == "new\n…\nlast\n"
    assert agrees(renewed("old\n…\ngone\n", "new\nmore\n"), "new\nmore\n")
    assert renewed("…\nin use 10 MiB\n", "more\nin use 12 MiB\n") == "…\nin use 12 MiB\n"
    assert renewed("took … s\nold\n", "took 1 s\nnew\n") == "took … s\nnew\n"
    assert renewed("…\nfirst 1\nlast 2\n", "head\nfirst 1\nnew\nlast 3\n") == (
        "…\nfirst 1\nnew\nlast 3\n"
    )
