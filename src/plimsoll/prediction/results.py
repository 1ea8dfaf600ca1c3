"""Predictions and fits: their parts, which show themselves as text."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.prediction.parts import FitParts, PredictionParts
from plimsoll.prediction.text import fit_text, prediction_text


@dataclass(frozen=True)
class Prediction(PredictionParts):
    """What one script needs on one card; as text, what `plimsoll predict` prints.

    See `PredictionParts` for what it says.

    Made by `plimsoll.predict`; see docs/predict.md.
    """

    def __str__(self) -> str:
        return prediction_text(self)


@dataclass(frozen=True)
class Fit(FitParts):
    """What was found for one card; as text, what `plimsoll fit` prints. See `FitParts`.

    Made by `plimsoll.fit`; see docs/predict.md.
    """

    def __str__(self) -> str:
        return fit_text(self)
