"""A fit that shows itself as text, and as a table in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.base.notebook_form import NotebookForm
from plimsoll.prediction.fitting.html import fit_html
from plimsoll.prediction.fitting.parts import FitParts
from plimsoll.prediction.fitting.text import fit_text


@dataclass(frozen=True)
class Fit(NotebookForm, FitParts):
    """The result of a fit for one card. It prints like `plimsoll fit`. See `FitParts`.

    `plimsoll.fit` returns it; see docs/predict.md.
    """

    def __str__(self) -> str:
        return fit_text(self)

    def _repr_html_(self) -> str:
        return fit_html(self)
