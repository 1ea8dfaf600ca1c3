"""A sweep that shows itself as text, and as tables in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.base.json_text import json_line
from plimsoll.base.notebook_form import NotebookForm
from plimsoll.prediction.sweeps.html import sweep_html
from plimsoll.prediction.sweeps.parts import SweepParts
from plimsoll.prediction.sweeps.text import sweep_text


@dataclass(frozen=True)
class Sweep(NotebookForm, SweepParts):
    """The result of `plimsoll.sweep`. `print` shows it as the command `plimsoll sweep` does.

    For its fields, see `SweepParts`. For its use, see docs/how-to/which-card.md.
    """

    def to_json(self) -> str:
        """Returns the text that `plimsoll sweep --json` prints."""
        return json_line(self.to_dict())

    def __str__(self) -> str:
        return sweep_text(self)

    def _repr_html_(self) -> str:
        return sweep_html(self)
