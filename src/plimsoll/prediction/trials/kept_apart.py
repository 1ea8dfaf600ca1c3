"""The means that protected real files from a program, and the changes that the kernel refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.wall import Refused


@dataclass(frozen=True)
class KeptApart:
    """The protection of real files in a trial.

    Attributes:
        kind: The means.
        refused: Changes of real files that the kernel refused.
        why_not: Why this machine does not offer a stronger one, by kind.
    """

    kind: Kind
    refused: list[Refused] = field(default_factory=list)
    why_not: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Makes it from the result of `to_dict`, also after JSON."""
        refused = [Refused(**one) for one in values["refused"]]
        return cls(Kind(values["kind"]), refused, values["why_not"])


def most_refused(*trials: KeptApart | None) -> KeptApart | None:
    """Returns the one with the most refused changes; None without any."""
    known = [trial for trial in trials if trial is not None]
    return max(known, key=lambda trial: len(trial.refused), default=None)
