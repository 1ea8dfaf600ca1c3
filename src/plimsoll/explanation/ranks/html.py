"""Formats the explanation of many ranks as HTML tables for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.notebook_form import answer, folded, table
from plimsoll.base.units import format_size
from plimsoll.explanation.ranks.text import answer_line, rank_ranges, ranks_text

if TYPE_CHECKING:
    from plimsoll.explanation.ranks.parts import RanksParts


def ranks_html(e: RanksParts) -> str:
    """Returns tables of the most important figures; the text form has all figures."""
    return "".join(
        (
            answer(answer_line(e)),
            table(
                "Ranks that stand out in their groups",
                [
                    (
                        f"{one.rank}: {one.kind.replace('_', ' ')}",
                        format_size(one.bytes),
                        one.line or "",
                    )
                    for one in e.outliers
                ],
            ),
            table(
                "Ranks that do the same, and who stands for them",
                [(rank_ranges(group.ranks), str(group.representative)) for group in e.groups],
            ),
            folded("All of it", ranks_text(e)),
        )
    )
