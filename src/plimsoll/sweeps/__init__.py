"""Which card, which configuration: many predictions and replays, and the best of them."""

from plimsoll.sweeps.parts import GOALS, Case, Row
from plimsoll.sweeps.results import Sweep
from plimsoll.sweeps.sweep import sweep

__all__ = ["GOALS", "Case", "Row", "Sweep", "sweep"]
