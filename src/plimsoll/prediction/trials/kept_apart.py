"""How a program was kept from real files, and what the kernel refused it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.wall import Refused


@dataclass(frozen=True)
class KeptApart:
    """How a trial was kept apart.

    Attributes:
        kind: By what.
        refused: Changes of real files that the kernel refused.
        why_not: By kind: why this machine does not offer a stronger one.
    """

    kind: Kind
    refused: list[Refused] = field(default_factory=list)
    why_not: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`, also by way of JSON."""
        refused = [Refused(**one) for one in values["refused"]]
        return cls(Kind(values["kind"]), refused, values["why_not"])


def most_refused(*trials: KeptApart | None) -> KeptApart | None:
    """Returns the one that was refused the most; None if there is none."""
    known = [trial for trial in trials if trial is not None]
    return max(known, key=lambda trial: len(trial.refused), default=None)
