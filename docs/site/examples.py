"""Examples in docstrings, as the blocks of code that they are.

A docstring's example begins with `>>>` and ends with an empty line. Markdown would take it for a
quotation. What only doctest reads is left out.
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
    """Fences them."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Of whatever has a docstring."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    margin = match["margin"]
    return f"\n{margin}```pycon\n{FLAGS.sub('', match[0])}\n{margin}```\n"
