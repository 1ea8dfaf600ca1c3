"""A prediction that shows itself as text, and as tables in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.base.notebook_form import NotebookForm
from plimsoll.prediction.html import prediction_html
from plimsoll.prediction.parts import PredictionParts
from plimsoll.prediction.text import prediction_text


@dataclass(frozen=True)
class Prediction(NotebookForm, PredictionParts):
    """The prediction for one script on one card. It prints like `plimsoll predict`.

    See `PredictionParts` for its fields.

    `plimsoll.predict` returns it; see docs/predict.md.
    """

    def __str__(self) -> str:
        return prediction_text(self)

    def _repr_html_(self) -> str:
        return prediction_html(self)
