"""A sweep as HTML for notebooks, and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.notebook_form import answer, folded, preformatted, table
from plimsoll.prediction.sweeps.case_bars import case_bars
from plimsoll.prediction.sweeps.text import answers, sweep_text, table_rows

if TYPE_CHECKING:
    from plimsoll.prediction.sweeps.parts import SweepParts

_PAGE = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>plimsoll sweep</title>"
    "<meta name='viewport' content='width=device-width'><style>:root{{color-scheme:light dark}}"
    "body{{font-family:sans-serif}}td,th{{padding:.1em .6em}}pre{{overflow-x:auto}}</style></head>"
    "<body>{}</body></html>\n"
)


def sweep_html(found: SweepParts) -> str:
    """Returns the answers, the picture and the table as HTML."""
    heads, *rows = table_rows(found)
    picture = preformatted(case_bars(found).plain) if found.rows else ""
    everything = folded("All of it", sweep_text(found))
    return answer("\n".join(answers(found))) + picture + table("", rows, heads) + everything


def sweep_page(found: SweepParts) -> str:
    """Returns the HTML of `sweep_html` as a document of its own, which loads nothing else."""
    return _PAGE.format(sweep_html(found))
