"""What one process of a predicted program tells, and what a job's processes tell together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from plimsoll.prediction.parts import SIZES_BY_DATA, ProcessUse
from plimsoll.prediction.rank_use import RankUse, SharedCard


@dataclass(frozen=True)
class Told:
    """What a process used.

    Attributes:
        process: Its number.
        rank: In its job; None where it has none.
        has_joined: Whether it joined the job itself: who it started has its environment too.
        host: The number of its machine in the job.
        report: As `make_report` makes it; None where the process was killed.
        uses: What it used of each GPU.
        cards: What nvidia-smi would show of it at its peak there, of each GPU that it used.
    """

    process: int
    rank: int | None
    has_joined: bool
    host: int
    report: dict[str, Any] | None
    uses: list[dict[str, Any]]
    cards: list[tuple[int, int]]

    @property
    def prediction(self) -> dict[str, Any] | None:
        """A `PredictionParts` as a dictionary; None where the process was killed."""
        return None if self.report is None else self.report["prediction"]


def told_ranks(told: list[Told]) -> list[Told]:
    """The ranks of a job, each once; other processes that have its environment are none."""
    by_rank: dict[int, Told] = {}
    for each in told:
        if each.rank is not None:
            before = by_rank.get(each.rank)
            by_rank[each.rank] = each if before is None else max(before, each, key=_weight)
    return [by_rank[rank] for rank in sorted(by_rank)]


def _weight(told: Told) -> tuple[bool, int]:
    found = told.prediction
    return told.has_joined, -1 if found is None else found["peak_reserved_bytes"]


def rank_use(told: Told) -> RankUse:
    """What a rank took."""
    assert told.rank is not None
    found = told.prediction
    if told.report is None or found is None:
        return RankUse(told.rank, told.host)
    allocated, reserved = found["peak_allocated_bytes"], found["peak_reserved_bytes"]
    depends = any(assumed["what"] in SIZES_BY_DATA for assumed in found["assumptions"])
    requested = allocated - found["by_category"]["rounding"]
    return RankUse(
        rank=told.rank,
        host=told.host,
        device=told.report["device"],
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        device_used_bytes=found["device_used_bytes"],
        nccl_bytes=found["nccl_bytes"],
        nccl_range_bytes=found["nccl_range_bytes"],
        fits=found["fits"],
        peak_allocated_range_bytes=(requested, allocated) if depends else None,
        peak_reserved_range_bytes=(reserved, reserved) if depends else None,
        device_used_range_bytes=_on_card(found) if depends or found["nccl_range_bytes"] else None,
    )


def _on_card(found: dict[str, Any]) -> tuple[int, int]:
    nccl = found["nccl_bytes"]
    least, most = found["nccl_range_bytes"] or (nccl, nccl)
    besides = found["device_used_bytes"] - nccl
    return besides + least, besides + most


def shared_cards(ranks: list[Told]) -> list[SharedCard]:
    """The cards that several ranks used."""
    by_card: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for each in ranks:
        for device, used in each.cards:
            assert each.rank is not None
            by_card[each.host, device][each.rank] = used
    return [
        SharedCard(host, device, list(used), max(used.values()), sum(used.values()) - most)
        for (host, device), used in sorted(by_card.items())
        if len(used) > 1 and (most := max(used.values()))
    ]


def process_uses(told: list[Told]) -> list[dict[str, Any]]:
    """What each process used of each GPU; of one that was killed, that it was there."""
    uses: list[dict[str, Any]] = []
    for each in told:
        killed = [] if each.report else [asdict(ProcessUse(each.process, None, None, None))]
        uses += each.uses or killed
    return uses
