"""Tests links between documents and to files of the project; `make docs` checks anchors."""

from __future__ import annotations

import re

import pytest

from tests.apart import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
BLOCK = re.compile(r"^```.*?^```", re.M | re.S)


@pytest.mark.parametrize("document", sorted(str(path.relative_to(ROOT)) for path in DOCUMENTS))
def test_what_a_document_links_to_is_there(document: str) -> None:
    path = ROOT / document
    links = LINK.findall(BLOCK.sub("", path.read_text(encoding="utf-8")))
    assert [link for link in links if not (path.parent / link).exists()] == []


CHINESE = [path for path in DOCUMENTS if path.name.endswith(".zh.md") and path.parent != ROOT]


@pytest.mark.parametrize("document", sorted(str(path.relative_to(ROOT)) for path in CHINESE))
def test_a_chinese_page_links_to_chinese_pages_or_says_that_a_page_is_english(
    document: str,
) -> None:
    path = ROOT / document
    for line in BLOCK.sub("", path.read_text(encoding="utf-8")).splitlines():
        english = [link for link in LINK.findall(line) if re.search(r"(?<!\.zh)\.md$", link)]
        assert [
            link for link in english if (path.parent / link).with_suffix(".zh.md").exists()
        ] == []
        assert not english or "英文" in line, line
