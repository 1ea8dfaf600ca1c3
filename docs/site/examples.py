"""Turns examples in docstrings into blocks of code on the documentation site.

A docstring's example begins with `>>>` and ends with an empty line. Markdown would show it as a
quotation. Comments for doctest are removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from griffe import Extension

if TYPE_CHECKING:
    from griffe import Object

FLAGS = re.compile(r"[ ]*# doctest: .*")
EXAMPLE = re.compile(r"^(?P<margin>[ ]*)>>> .*?(?=\n[ ]*\n|\Z)", re.M | re.S)


class Examples(Extension):
    """Puts each example of a docstring into a fenced block of code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrites the docstring of the object, if it has one."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    margin = match["margin"]
    return f"\n{margin}```pycon\n{FLAGS.sub('', match[0])}\n{margin}```\n"
