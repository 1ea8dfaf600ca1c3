"""How a script fits a card: with which value of an argument, with which changes."""

from plimsoll.fitting.parts import INTERRUPTED, Trial
from plimsoll.fitting.plan_parts import PlannedChange, Tried
from plimsoll.fitting.plan_text import plan_text, runs_picture
from plimsoll.fitting.plans import Plan
from plimsoll.fitting.results import Fit
from plimsoll.fitting.text import trial_text
from plimsoll.fitting.values import fit
from plimsoll.fitting.within import fit_within

__all__ = [
    "INTERRUPTED",
    "Fit",
    "Plan",
    "PlannedChange",
    "Trial",
    "Tried",
    "fit",
    "fit_within",
    "plan_text",
    "runs_picture",
    "trial_text",
]
