"""What is said of many ranks, as data. Unknown figures are None."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.explanation.parts import ExplanationParts
    from plimsoll.explanation.ranks.outliers import Outlier
    from plimsoll.explanation.ranks.rank_groups import RankGroup


@dataclass(frozen=True)
class RankFacts:
    """One rank.

    Attributes:
        rank: Its number.
        host: The name of its machine.
        file: Its recording.
        device: Which device it used the most.
        events: How many events there are.
        steps: How many steps were found.
        peak_allocated_bytes: The most that was asked for and live.
        peak_reserved_bytes: The most that was reserved.
        card_bytes: What its card has.
        ran_out_us: When its first request failed, microseconds since the epoch; None if none did.
        problems: What is missing of its history.
    """

    rank: int
    host: str | None
    file: str
    device: int
    events: int
    steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    card_bytes: int | None
    ran_out_us: int | None
    problems: list[str]


@dataclass(frozen=True)
class RanksParts:
    """Why the memory of a job's ranks was used as it was.

    Attributes:
        folder: Where the recordings are.
        world_size: How many ranks the job has, as far as a recording says it.
        ranks: Each rank, in order.
        groups: Ranks that do the same, the largest group first.
        outliers: Ranks that stand out in their group, what matters most first.
        fullest: The rank with the least room: the highest peak of its card, or without known cards
            the highest.
        explanations: Of representatives and of the first outlier that ran out, by rank.
        not_read: Files that could not be used, a line each.
    """

    folder: str
    world_size: int | None
    ranks: list[RankFacts]
    groups: list[RankGroup]
    outliers: list[Outlier]
    fullest: int
    explanations: dict[int, ExplanationParts]
    not_read: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys."""
        return {
            "folder": self.folder,
            "world_size": self.world_size,
            "ranks": [asdict(one) for one in self.ranks],
            "groups": [asdict(one) for one in self.groups],
            "outliers": [asdict(one) for one in self.outliers],
            "fullest": self.fullest,
            "explanations": {
                str(rank): one.to_dict() for rank, one in sorted(self.explanations.items())
            },
            "not_read": self.not_read,
        }
