"""How a script fits a card: with which value of an argument, with which changes."""

from plimsoll.fitting.parts import INTERRUPTED, Trial
from plimsoll.fitting.results import Fit
from plimsoll.fitting.text import trial_text
from plimsoll.fitting.values import fit

__all__ = ["INTERRUPTED", "Fit", "Trial", "fit", "trial_text"]
