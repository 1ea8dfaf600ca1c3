"""Gives each language its own search index, so that readers find pages in their language.

The search plugin writes one index of all pages, in which jieba has split Chinese text into words.
The Chinese index contains the English text of each page that has no Chinese version yet.
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
"""Finds, in a page, the folder from which its script loads the search index."""
QUERY_WORDS = re.compile(r"(\w=\w\+1;\w)<=?(\w\.length;\w\+\+\)\w\.slice)")
"""Finds, in the theme's script, the loop over the words of a Chinese query."""
_warn = logging.getLogger("mkdocs.hooks.searching").warning
jieba.setLogLevel(logging.WARNING)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Makes a Chinese page load the Chinese index."""
    if page.url.startswith(CHINESE):
        return BASE.sub(lambda found: f"{found[0]}/{CHINESE}", output, count=1)
    return output


@event_priority(-200)  # after both languages are built
def on_post_build(config: MkDocsConfig) -> None:
    """Splits the index by language, and corrects the theme's script.

    Without the correction, the script ignores the last word of a Chinese query. For example, a
    search for 显存碎片 finds only 显存.
    """
    site = Path(config.site_dir)
    whole = json.loads((site / INDEX).read_text(encoding="utf-8"))
    pages: dict[str, list[dict[str, str]]] = {"en": [], "zh": []}
    for page in whole["docs"]:
        place = page["location"].removeprefix(CHINESE)
        language = "en" if place == page["location"] else "zh"
        pages[language].append({**page, "location": place})
    for language, folder in (("en", site), ("zh", site / CHINESE)):
        index = {"config": {**whole["config"], "lang": [language]}, "docs": pages[language]}
        write_file(json.dumps(index, ensure_ascii=False).encode(), str(folder / INDEX))
    for script in site.glob("assets/javascripts/workers/search.*.js"):
        text, corrections = QUERY_WORDS.subn(r"\1<=\2", script.read_text(encoding="utf-8"))
        if corrections != 1:
            _warn("%s is not the search of mkdocs-material 9.8.2", script.name)
        script.write_text(text, encoding="utf-8")
