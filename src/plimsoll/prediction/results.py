"""A prediction: its parts, which show themselves as text."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.prediction.parts import PredictionParts
from plimsoll.prediction.text import prediction_text


@dataclass(frozen=True)
class Prediction(PredictionParts):
    """What one script needs on one card; as text, what `plimsoll predict` prints.

    See `PredictionParts` for what it says.

    Made by `plimsoll.predict`; see docs/predict.md.
    """

    def __str__(self) -> str:
        return prediction_text(self)
