"""Rewrites the links in pages, so that they work on the site.

In the repository, a link is a path between two files. These files have other paths on the site.
PAGES names the Markdown files in the project's root that become pages of the site. Any other linked
file, such as a results file or an example, is copied to the site below `files`. A link to a missing
file gives a warning, and `mkdocs build --strict` then fails.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
_warn = logging.getLogger("mkdocs.hooks.links").warning


@event_priority(-200)  # after the i18n plugin has sorted the files by language
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root folder, and each file outside of `docs` that a page links to."""
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    for file in [file for file in files if file.is_documentation_page()]:
        for link, _ in LINK.findall(file.content_string):
            target = _in_the_project(file.src_uri, link)
            if _is_outside(target) and (ROOT / target).is_file():
                copy = File.generated(config, f"files/{target}", abs_src_path=str(ROOT / target))
                if copy.src_uri not in files.src_uris:
                    files.append(copy)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Makes each link lead to the linked file's place on the site."""

    def of_the_site(match: re.Match[str]) -> str:
        target = _in_the_project(page.file.src_uri, match[1])
        if target.startswith("docs/"):
            # Names the English file even on a Chinese page, because the i18n plugin itself directs
            # the link to the page in the reader's language.
            place = re.sub(r"\.zh\.md$", ".md", target.removeprefix("docs/"))
        elif target in PAGES:
            place = target
        elif (ROOT / target).is_file():
            place = f"files/{target}"
        else:
            _warn("%s links to %s, which is not there", page.file.src_uri, match[1])
            return match[0]
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri)) + (match[2] or "")

    return LINK.sub(of_the_site, markdown)


def _in_the_project(page: str, link: str) -> str:
    """Returns the path, from the project's root, of the file that a page links to."""
    folder = "" if page in PAGES else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(folder, link))


def _is_outside(target: str) -> bool:
    return not target.startswith(("docs/", "..")) and target not in PAGES
