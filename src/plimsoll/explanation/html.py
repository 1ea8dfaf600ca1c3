"""Formats an explanation as HTML tables for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.notebook_form import answer, folded, size_table, table
from plimsoll.base.units import format_count, format_size
from plimsoll.explanation.first_lines import answers
from plimsoll.explanation.text import explanation_text
from plimsoll.recordings.analysis.category_names import category_title

if TYPE_CHECKING:
    from plimsoll.explanation.parts import ExplanationParts


def explanation_html(e: ExplanationParts) -> str:
    """Returns tables of the most important figures; the text form has all figures."""
    r = e.reserved
    held = sorted(e.peak.by_category.items(), key=lambda item: -item[1])
    parts = [
        *map(answer, answers(e)),
        answer(f"{e.file}, device {e.device}: {format_count(e.events, 'event')}"),
        size_table(
            f"Reserved at its peak: {format_size(r.reserved_bytes)}",
            [
                ("allocated", r.allocated_bytes),
                ("waiting for other streams", r.pending_bytes),
                ("cached", r.cached_bytes),
                ("fragments", r.fragments_bytes),
            ],
            r.reserved_bytes,
        ),
        size_table(
            f"Live at the peak of allocated memory: {format_size(e.peak.allocated_bytes)}",
            [(category_title(name), size) for name, size in held],
            e.peak.allocated_bytes,
        ),
        size_table(
            "By source line", [(s.line, s.bytes) for s in e.peak.lines], e.peak.allocated_bytes
        ),
        table(
            "Out of memory",
            [
                (f"event {o.event:,}: {o.reason.replace('_', ' ')}", format_size(o.asked_bytes))
                for o in e.out_of_memory
            ],
        ),
        table(
            "Leaks, by what they grow each step",
            [(leak.what, format_size(round(leak.slope_bytes))) for leak in e.leaks],
        ),
        table(
            "Advice, the cheapest first, and what it saves",
            [
                (f"{a.what}: {a.how}", format_size(a.saves_bytes) if a.was_tried else "not tried")
                for a in e.advice
            ],
        ),
        folded("All of it", explanation_text(e)),
    ]
    return "".join(parts)
