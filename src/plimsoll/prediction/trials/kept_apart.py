"""Describes how a trial protected real files, and which writes the kernel refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.wall import Refused


@dataclass(frozen=True)
class KeptApart:
    """How a trial protected real files from the program's writes, and what the kernel refused.

    Attributes:
        kind: How writes were redirected.
        refused: The writes to real files that the kernel refused.
        why_not: For each stronger kind, why this machine does not offer it.
    """

    kind: Kind
    refused: list[Refused] = field(default_factory=list)
    why_not: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Makes the object from the result of `to_dict`, even after a round trip through JSON."""
        refused = [Refused(**one) for one in values["refused"]]
        return cls(Kind(values["kind"]), refused, values["why_not"])


def most_refused(*trials: KeptApart | None) -> KeptApart | None:
    """Returns the trial with the longest `refused`; None if `trials` has only None."""
    known = [trial for trial in trials if trial is not None]
    return max(known, key=lambda trial: len(trial.refused), default=None)
