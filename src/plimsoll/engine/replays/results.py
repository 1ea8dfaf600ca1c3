"""A list of replay results that prints as a table."""

from __future__ import annotations

from plimsoll.base.notebook_form import NotebookForm
from plimsoll.engine.replays.html import replays_html
from plimsoll.engine.replays.parts import ReplayResult
from plimsoll.engine.replays.text import replays_text


class Replays(NotebookForm, list[ReplayResult]):
    """A list of replays. Printed or in a notebook, it shows the table of `plimsoll replay`.

    To compare several configurations in one table, join their lists:
    `print(Replays(first + second))`.

    See docs/replay.md.
    """

    def __repr__(self) -> str:
        return replays_text(self) if self else "[]"

    def _repr_html_(self) -> str:
        return replays_html(self)
