"""The report of one process of a predicted program, and figures computed from a job's reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.assumed import NEEDS_TRIALS
from plimsoll.prediction.parts import GpuUse
from plimsoll.prediction.rank_use import RankUse, SharedCard
from plimsoll.torch.simulated.serving_use import ServingUse

if TYPE_CHECKING:
    from plimsoll.prediction.child.cards import Card


@dataclass(frozen=True)
class ProcessReport:
    """The report of one process.

    Attributes:
        process: The process id.
        rank: The process's rank in the job. If the process did not join the job, this is the rank
            in its environment variable RANK, or None without this variable.
        has_joined: Whether the process itself joined the job as a rank. A process that a rank
            started has the rank's environment variables, but does not join.
        host: The number of the process's machine within the job.
        report: The report of `make_report`; None if the process was killed.
        cards: A pair for each GPU that the process used: the GPU's number, and the name of the file
            in which the processes note their use of that GPU (`cards.py`).
    """

    process: int
    rank: int | None
    has_joined: bool
    host: int
    report: dict[str, Any] | None
    cards: list[tuple[int, str]]

    @property
    def prediction(self) -> dict[str, Any] | None:
        """The process's `PredictionParts` as a dictionary; None if the process was killed."""
        return None if self.report is None else self.report["prediction"]

    def uses(self, cards: dict[str, Card]) -> list[dict[str, Any]]:
        """Returns a `GpuUse` for each GPU. For a killed process the cards' files give the use."""
        if self.prediction is not None:
            return list(self.prediction["devices"])
        return [
            asdict(GpuUse(card.device, None, None, card.takes[self.process], None))
            for card in cards.values()
            if self.process in card.takes
        ]


def rank_reports(reports: list[ProcessReport]) -> list[ProcessReport]:
    """Returns one report for each rank of a job, leaving out processes that the ranks started."""
    by_rank: dict[int, ProcessReport] = {}
    for each in reports:
        if each.rank is not None:
            before = by_rank.get(each.rank)
            by_rank[each.rank] = each if before is None else max(before, each, key=_weight)
    return [by_rank[rank] for rank in sorted(by_rank)]


def _weight(reported: ProcessReport) -> tuple[bool, int]:
    found = reported.prediction
    return reported.has_joined, -1 if found is None else found["peak_reserved_bytes"]


def rank_use(reported: ProcessReport, cards: dict[str, Card]) -> RankUse:
    """Returns the memory that a rank used. For a killed rank, its card's file gives the figures."""
    assert reported.rank is not None
    found, card = reported.prediction, card_of(reported, cards)
    if reported.report is None or found is None:
        if card is None:
            return RankUse(reported.rank, reported.host)
        used = card.takes[reported.process]
        return RankUse(
            reported.rank,
            reported.host,
            card.device,
            device_used_bytes=used,
            card_used_bytes=card.together_bytes,
        )
    is_shared = card is not None and len(card.takes) > 1
    is_sure = card is None or not is_shared or card.at_most_bytes <= found["total_bytes"]
    allocated, reserved = found["peak_allocated_bytes"], found["peak_reserved_bytes"]
    depends = any(assumed["what"] in NEEDS_TRIALS for assumed in found["assumptions"])
    requested = allocated - found["by_category"]["rounding"]
    return RankUse(
        rank=reported.rank,
        host=reported.host,
        device=reported.report["device"],
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        device_used_bytes=found["device_used_bytes"],
        nccl_bytes=found["nccl_bytes"],
        nccl_range_bytes=found["nccl_range_bytes"],
        fits=found["fits"] and _has_room(found) and (True if is_sure else None),
        peak_allocated_range_bytes=_bounds(found, "allocated")
        or ((requested, allocated) if depends else None),
        peak_reserved_range_bytes=_bounds(found, "reserved")
        or ((reserved, reserved) if depends else None),
        device_used_range_bytes=_on_card(found, depends=depends),
        card_used_bytes=card.together_bytes
        if card is not None and is_shared
        else found["device_used_bytes"],
        serving=found["serving"] and ServingUse.from_dict(found["serving"]),
    )


def _has_room(found: dict[str, Any]) -> bool:
    """Returns False if a run with unlimited memory has shown that the card is too small."""
    return all(need["fits"] for need in found["needs"][:1])


def _bounds(found: dict[str, Any], peak: str) -> tuple[int, int] | None:
    bounds = found[f"peak_{peak}_range_bytes"]
    return bounds and (bounds[0], bounds[1])


def _on_card(found: dict[str, Any], *, depends: bool) -> tuple[int, int] | None:
    """Returns the least and the most that `device_used_bytes` can be; None if it is certain.

    NCCL's memory and reserved memory may each be known only as a range. All other memory on the
    card is taken as certain. If `depends` is set, the memory may depend on data that plimsoll does
    not know. The result is then always a range, even if its two ends are equal.
    """
    nccl, reserved = found["nccl_range_bytes"], _bounds(found, "reserved")
    if not (depends or nccl or reserved):
        return None
    least, most = nccl or (found["nccl_bytes"],) * 2
    low, high = reserved or (found["peak_reserved_bytes"],) * 2
    besides = found["device_used_bytes"] - found["nccl_bytes"] - found["peak_reserved_bytes"]
    return besides + least + low, besides + most + high


def card_of(reported: ProcessReport, cards: dict[str, Card]) -> Card | None:
    """Returns the card that a report describes, or the card that a killed process filled most."""
    if reported.report is not None:
        return cards.get(dict(reported.cards).get(reported.report["device"], ""))
    used = [card for card in cards.values() if reported.process in card.takes]
    return max(used, key=lambda card: card.takes[reported.process], default=None)


def shared_cards(ranks: list[ProcessReport], cards: dict[str, Card]) -> list[SharedCard]:
    """Returns the cards that several processes used."""
    return [
        SharedCard(
            card.host,
            card.device,
            [each.rank for each in ranks if each.rank is not None and each.process in card.takes],
            len(card.takes),
            card.together_bytes,
            card.at_most_bytes,
        )
        for card in cards.values()
        if len(card.takes) > 1
    ]


def process_uses(reports: list[ProcessReport], cards: dict[str, Card]) -> list[dict[str, Any]]:
    """Returns a `ProcessUse`, as a dictionary, for each GPU that each process used."""
    unknown = [asdict(GpuUse(None, None, None, None, None))]
    return [
        {"process": each.process, **use}
        for each in reports
        for use in each.uses(cards) or (unknown if each.report is None else [])
    ]
