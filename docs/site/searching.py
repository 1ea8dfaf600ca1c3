"""A search index for each language: a page searches the pages of its own language.

The search plugin writes one index of all pages, in which jieba has split Chinese text into words.
A page that has no Chinese version yet is in the Chinese index in English.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jieba
from mkdocs.plugins import event_priority
from mkdocs.utils import write_file

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

CHINESE = "zh/"
INDEX = "search/search_index.json"
BASE = re.compile(r'(?<="base": ")[^"]*')
"""The folder from which a page's script loads its index, relative to the page."""
QUERY_WORDS = re.compile(r"(\w=\w\+1;\w)<=?(\w\.length;\w\+\+\)\w\.slice)")
"""The loop of the theme's script over the words of a Chinese query, which leaves out the last."""
_warn = logging.getLogger("mkdocs.hooks.searching").warning
jieba.setLogLevel(logging.WARNING)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Makes a Chinese page load the Chinese index."""
    if page.url.startswith(CHINESE):
        return BASE.sub(lambda found: f"{found[0]}/{CHINESE}", output, count=1)
    return output


@event_priority(-200)  # after both languages are built
def on_post_build(config: MkDocsConfig) -> None:
    """Splits the index by language, and makes the search find the last word of a Chinese query."""
    site = Path(config.site_dir)
    whole = json.loads((site / INDEX).read_text(encoding="utf-8"))
    chinese = [each for each in whole["docs"] if each["location"].startswith(CHINESE)]
    english = [each for each in whole["docs"] if each not in chinese]
    for each in chinese:
        each["location"] = each["location"].removeprefix(CHINESE)
    _write(site / INDEX, whole["config"], "en", english)
    _write(site / CHINESE / INDEX, whole["config"], "zh", chinese)
    for script in site.glob("assets/javascripts/workers/search.*.js"):
        _search_last_words(script)


def _write(path: Path, config: dict[str, Any], language: str, pages: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    index = {"config": {**config, "lang": [language]}, "docs": pages}
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def _search_last_words(script: Path) -> None:
    """Corrects the theme's script, which leaves out a word at the end of a Chinese query."""
    text, corrections = QUERY_WORDS.subn(r"\1<=\2", script.read_text(encoding="utf-8"))
    if corrections != 1 and "<=" not in text:
        _warn("%s has another search than mkdocs-material 9.8.2", script.name)
    script.write_text(text, encoding="utf-8")
