"""The explanation of many ranks as plain data; None means unknown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.explanation.parts import ExplanationParts
    from plimsoll.explanation.ranks.outliers import Outlier
    from plimsoll.explanation.ranks.rank_groups import RankGroup


@dataclass(frozen=True)
class RankFacts:
    """The figures of one rank.

    Attributes:
        rank: The number of the rank.
        host: The name of its machine.
        file: Its recording.
        device: The device on which it used the most memory.
        events: The number of events.
        steps: The number of steps found.
        peak_allocated_bytes: The most requested bytes that were live at once.
        peak_reserved_bytes: The most bytes that were reserved at once.
        card_bytes: The memory of its card.
        ran_out_us: The time of its first failed request, in microseconds since the epoch; None if
            no request failed.
        problems: The gaps in its history, a sentence each.
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
    """The explanation of a job's memory.

    Attributes:
        folder: The folder of the recordings.
        world_size: The number of ranks in the job, if a recording says it.
        ranks: Each rank, in order.
        groups: Ranks with equal behaviour, the largest group first.
        outliers: Ranks that stand out in their group, the most important first.
        fullest: The rank with the highest peak relative to its card. If the cards are unknown, the
            rank with the highest peak.
        explanations: The explanations of the largest groups' representatives and of the first rank
            in `outliers`, keyed by rank.
        not_read: A line for each file that could not be used.
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
        """Returns the values for JSON: in base units, with stable keys."""
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
