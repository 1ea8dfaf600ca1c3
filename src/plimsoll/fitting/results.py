"""Fits: their parts, which show themselves as text."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.fitting.parts import FitParts
from plimsoll.fitting.text import fit_text


@dataclass(frozen=True)
class Fit(FitParts):
    """What was found for one card; as text, what `plimsoll fit` prints. See `FitParts`.

    Made by `plimsoll.fit`; see docs/predict.md.
    """

    def __str__(self) -> str:
        return fit_text(self)
