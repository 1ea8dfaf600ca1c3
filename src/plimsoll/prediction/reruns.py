"""Says which further run of a script is under way, and why plimsoll makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction

_TRIALS = 2
"""The number of further runs that find the range of a prediction."""


@dataclass
class Reruns:
    """Counts the runs of a script after its first run, which has given the verdict.

    Attributes:
        script: The script's title.
        verdict: The verdict of the first run, such as "it fits on T4".
        count: The number of all runs, the first included.
        tell: A function that gets the text about the current run.
        done: The number of runs that have begun.
    """

    script: str
    verdict: str
    count: int
    tell: Callable[[str], None]
    done: int = 1

    @classmethod
    def of(cls, request: Request, first: Prediction, tell: Callable[[str], None]) -> Self:
        """Returns the object for a prediction's further runs."""
        fits = {True: "fits", False: "does not fit", None: "may or may not fit"}[first.fits]
        count = 1 + (first.fits is False) + _TRIALS * first.needs_trials
        return cls(request.title, f"it {fits} on {first.gpu}", count, tell)

    def begin(self, why: str, runs: int = 1) -> None:
        """Tells that further runs begin, how they differ from the first, and why they are made."""
        first, self.done = self.done + 1, self.done + runs
        self.count = max(self.count, self.done)
        which = f"run {first}" if runs == 1 else f"runs {first} to {self.done}"
        self.tell(f"{which} of {self.count} of {self.script}, {why}; {self.verdict}")
