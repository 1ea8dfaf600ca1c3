"""How a script fits a card: with which value of an argument, with which changes."""

from plimsoll.fitting.parts import Trial
from plimsoll.fitting.results import Fit
from plimsoll.fitting.values import fit

__all__ = ["Fit", "Trial", "fit"]
