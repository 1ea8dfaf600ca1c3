"""Shows replays in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.notebook_form import answer, folded, table
from plimsoll.engine.replays.text import answer_of, best_first, heads, replays_text, row, title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.engine.replays.parts import ReplayResult


def replays_html(results: Sequence[ReplayResult]) -> str:
    """Returns an answer and a table, the best replay first, for each device of each file."""
    tables = [
        answer(answer_of(ranked)) + table(title(ranked[0]), map(row, ranked), heads(ranked[0]))
        for ranked in best_first(results)
    ]
    return "".join(tables) + folded("All of it", replays_text(results))
