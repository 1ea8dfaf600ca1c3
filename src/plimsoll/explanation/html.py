"""An explanation as tables, for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from plimsoll.explanation.first_lines import answers
from plimsoll.printable import printable
from plimsoll.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.explanation.parts import ExplanationParts


def explanation_html(e: ExplanationParts) -> str:
    """Tables of what matters most; `str()` has all of it."""
    r = e.reserved
    parts = [
        *(f"<p>{_escape(answer)}</p>" for answer in answers(e)),
        f"<p><b>{_escape(e.file)}</b>, device {e.device}: {format_count(e.events, 'event')}</p>",
        _table(
            f"Reserved at its peak: {format_size(r.reserved_bytes)}",
            [
                ("allocated", format_size(r.allocated_bytes)),
                ("waiting for other streams", format_size(r.pending_bytes)),
                ("cached", format_size(r.cached_bytes)),
                ("fragments", format_size(r.fragments_bytes)),
            ],
        ),
        _table(
            f"Live at the peak of allocated memory: {format_size(e.peak.allocated_bytes)}",
            [
                (name.replace("_", " "), format_size(size))
                for name, size in sorted(e.peak.by_category.items(), key=lambda item: -item[1])
                if size
            ],
        ),
        _table("By source line", [(s.line, format_size(s.bytes)) for s in e.peak.lines]),
        _table(
            "Out of memory",
            [
                (f"event {o.event:,}: {o.reason.replace('_', ' ')}", format_size(o.asked_bytes))
                for o in e.out_of_memory
            ],
        ),
        _table(
            "Leaks, by what they grow each step",
            [(leak.what, format_size(round(leak.slope_bytes))) for leak in e.leaks],
        ),
        _table(
            "Advice, the cheapest first, and what it saves",
            [(f"{a.what}: {a.how}", format_size(a.saves_bytes)) for a in e.advice],
        ),
    ]
    return "".join(parts)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td style='text-align:left'>{_escape(name)}</td>"
        f"<td style='text-align:right'>{_escape(value)}</td></tr>"
        for name, value in rows
    )
    heading = f"<caption style='text-align:left'>{_escape(title)}</caption>"
    return f"<table>{heading}{body}</table>"


def _escape(text: str) -> str:
    return html.escape(printable(text))
