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
