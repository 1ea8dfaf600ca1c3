"""Shows results in notebooks: first the answer, then tables, then the whole text, collapsed.

Colours are the notebook's own, so they follow its light or dark theme.
"""

from __future__ import annotations

import html
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from plimsoll.base.printable import printable
from plimsoll.base.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_RIGHT = " style='text-align:right'"
_LEFT = " style='text-align:left'"


class NotebookForm(ABC):
    """A result with a form for notebooks, `_repr_html_`, and one for terminals, `__str__`."""

    @abstractmethod
    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows for this result."""

    def _repr_mimebundle_(
        self,
        include: object = None,  # noqa: ARG002
        exclude: object = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        return {"text/html": self._repr_html_(), "text/plain": str(self)}


def answer(text: str) -> str:
    """Returns HTML that shows the result's answer: each line of `text` in bold."""
    return "".join(f"<p><b>{_escape(line)}</b></p>" for line in text.splitlines())


def table(title: str, rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Returns an HTML table; all columns after the first hold numbers. "" if there are no rows."""
    body = "".join(_row(row, "td") for row in rows)
    return f"<table>{_title(title)}{_row(heads, 'th')}{body}</table>" if body else ""


def size_table(title: str, rows: Iterable[tuple[str, int]], whole_bytes: int | None = None) -> str:
    """Returns an HTML table of the sizes above zero, each with a bar for its share of the whole."""
    body = "".join(
        f"<tr><td{_LEFT}>{_escape(name)}</td><td{_RIGHT}>{format_size(size)}</td>"
        f"{_bar(size, whole_bytes)}</tr>"
        for name, size in rows
        if size
    )
    return f"<table>{_title(title)}{body}</table>" if body else ""


def folded(title: str, text: str) -> str:
    """Returns text as a terminal shows it, collapsed until the reader opens it."""
    return f"<details><summary>{_escape(title)}</summary>{preformatted(text)}</details>"


def preformatted(text: str) -> str:
    """Returns text as a terminal shows it: with its line breaks, in a font of fixed width."""
    return f"<pre>{chr(10).join(map(_escape, text.splitlines()))}</pre>"


def link(path: str) -> str:
    """Returns a link that opens a file in another tab."""
    return f"<a href='{_escape(quote(os.fsencode(path)))}' target='_blank'>{_escape(path)}</a>"


def _title(text: str) -> str:
    return f"<caption{_LEFT}>{_escape(text)}</caption>" if text else ""


def _row(cells: Sequence[str], tag: str) -> str:
    if not cells:
        return ""
    first, *others = map(_escape, cells)
    right = "".join(f"<{tag}{_RIGHT}>{cell}</{tag}>" for cell in others)
    return f"<tr><{tag}{_LEFT}>{first}</{tag}>{right}</tr>"


def _bar(size: int, whole_bytes: int | None) -> str:
    if not whole_bytes:
        return ""
    percent = 100 * min(size / whole_bytes, 1)
    bar = f"width:{percent:.1f}%;height:.7em;background:currentColor;opacity:.35"
    return (
        f"<td{_RIGHT}>{percent:.1f}%</td><td style='min-width:12em'><div style='{bar}'></div></td>"
    )


def _escape(text: str) -> str:
    return html.escape(printable(text))
