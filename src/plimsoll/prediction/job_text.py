"""Formats predictions of jobs: the verdict over all ranks, and a row for each."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from plimsoll.base.layout import table
from plimsoll.base.units import format_count, format_size
from plimsoll.prediction.little_room import doubt, spare_words
from plimsoll.prediction.need_text import lack_text, rescue_text
from plimsoll.prediction.serving_text import serving_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from plimsoll.prediction.parts import PredictionParts
    from plimsoll.prediction.rank_use import RankUse

_MOST_ROWS = 16
"""The most rows. If there are more ranks, ranks with equal figures share a row."""
_HEAD = ("allocated", "reserved", "NCCL", "on the card", "fits")
_LEFT_OUT = ("NCCL", "allocated", "reserved")
"""The columns that are left out in a narrow terminal, in this order."""
_VERDICTS = {True: "yes", False: "no", None: "-"}


def is_job(p: PredictionParts) -> bool:
    """Returns whether several ranks ran."""
    return len(p.ranks) > 1


def card_of(p: PredictionParts) -> str:
    """Returns the card's name and, if blocks can spill into host memory, that memory's size."""
    if p.shared is None:
        return p.gpu
    return f"{p.gpu} with {format_size(p.shared.total_bytes)} of shared memory"


def rate_text(samples_per_second: float, world_size: int) -> str:
    """Formats how many samples all ranks together process per second.

    A script that is not a job has one rank.

    Args:
        samples_per_second: As in a `Prediction`.
        world_size: The number of ranks.
    """
    rate = f"{samples_per_second:,.0f} samples/s"
    if world_size == 1:
        return rate
    of_rank = samples_per_second / world_size
    each = f"{of_rank:,.{0 if of_rank >= 10 else 1}f} samples/s on each"
    return f"{rate} on all {world_size} ranks, if each has samples of its own ({each})"


def job_verdict(p: PredictionParts, width: int | None = None) -> Iterator[str]:
    """Yields the verdict over all ranks, and a row for each; nothing unless several ranks ran."""
    if not is_job(p):
        return
    yield _verdict(p)
    yield from _table(p.ranks, width)
    yield from shared_card_rows(p)
    if p.processes:
        count = format_count(len({use.process for use in p.processes}), "process", "processes")
        yield f"{count} without a rank used simulated GPUs too"


def shared_card_rows(p: PredictionParts) -> Iterator[str]:
    """Yields a line for each card that several processes use.

    The line gives the most memory that these processes take together at one time.
    """
    for card in p.shared_cards:
        where = f"GPU {card.device}" + (f" of host {card.host}" if _hosts(p.ranks) > 1 else "")
        ranks = [f"ranks {_numbers(card.ranks)}"] if card.ranks else []
        others = format_count(card.processes - len(card.ranks), "process", "processes")
        users = ranks + [others] * (card.processes > len(card.ranks))
        full = ", more than the card has" if card.together_bytes > p.total_bytes else ""
        possible = (
            f"; {format_size(card.at_most_bytes)} if their peaks coincide"
            if card.at_most_bytes > card.together_bytes
            else ""
        )
        yield (
            f"{where} is used by {' and '.join(users)}: together they take "
            f"{format_size(card.together_bytes)}{full}{possible}"
        )


def _verdict(p: PredictionParts) -> str:
    spare = format_size(abs(p.headroom_bytes))
    count = sum(use.stands_for for use in p.ranks)
    where, worst = card_of(p), f"rank {p.worst_rank}"
    so_far = " so far" if p.stopped else ""
    if p.fits is None:
        return f"Whether {p.script} fits on {where} is not known: {p.why_unknown}"
    if (serving := serving_verdict(p)) is not None:
        return f"{p.script} {'fits' if p.fits else 'does not fit'} on {where}: {serving}"
    if p.fits:
        doubted = doubt(p)
        verdict = "fits" if doubted is None else "may not fit"
        why_not = "" if doubted is None else f", and {doubted}"
        return (
            f"{p.script} {verdict} on {where}{so_far}: {count} of {count} ranks; {worst} has "
            f"the least to spare, {spare_words(p).replace(' to spare', '')}{why_not}"
        )
    failed = sum(use.stands_for for use in p.ranks if use.fits is False)
    in_pieces = f"{spare} to spare, but not in one piece"
    return (
        f"{p.script} does not fit on {where}{so_far}: {failed} of {count} ranks; rank "
        f"{p.worst_rank} is the worst, "
        f"{in_pieces if p.headroom_bytes >= 0 else lack_text(p)}{rescue_text(p)}"
    )


def _table(ranks: list[RankUse], width: int | None) -> Iterator[str]:
    some = any(use.stands_for > 1 for use in ranks)
    head = ("rank", *(["stands for"] if some else []), "host:GPU" if _hosts(ranks) > 1 else "GPU")
    rows = [(*head, *_HEAD), *_rows(ranks, some=some)]
    yield from table(rows, width=width, indent="  ", optional=_LEFT_OUT)


def _rows(ranks: list[RankUse], *, some: bool) -> Iterator[tuple[str, ...]]:
    hosts = _hosts(ranks)
    if len(ranks) <= _MOST_ROWS:
        groups = [[use] for use in ranks]
    else:
        by_figures = sorted(ranks, key=lambda use: (_figures(use), use.rank))
        groups = [list(group) for _, group in groupby(by_figures, key=_figures)]
        groups.sort(key=lambda group: group[0].rank)
    for group in groups:
        devices = _numbers({use.device for use in group if use.device is not None}) or "-"
        if hosts > 1:
            devices = f"{_numbers({use.host for use in group})}:{devices}"
        stands_for = [str(sum(use.stands_for for use in group))] if some else []
        yield (_numbers(use.rank for use in group), *stands_for, devices, *_figures(group[0]))


def _figures(use: RankUse) -> tuple[str, ...]:
    cells = (
        (use.peak_allocated_bytes, use.peak_allocated_range_bytes),
        (use.peak_reserved_bytes, use.peak_reserved_range_bytes),
        (use.nccl_bytes, use.nccl_range_bytes),
        (use.device_used_bytes, use.device_used_range_bytes),
    )
    return (*(_cell(size, bounds) for size, bounds in cells), _VERDICTS[use.fits])


def _cell(size: int | None, bounds: tuple[int, int] | None) -> str:
    """Formats a size, or its bounds as a range. Bounds that look equal in print are shown once."""
    ends = dict.fromkeys(map(format_size, bounds or ([] if size is None else [size])))
    return " to ".join(ends) or "-"


def _hosts(ranks: list[RankUse]) -> int:
    return len({use.host for use in ranks})


def _numbers(numbers: Iterable[int]) -> str:
    """Formats numbers as "0-6, 8"."""
    ordered = enumerate(sorted(numbers))
    runs = [list(run) for _, run in groupby(ordered, key=lambda entry: entry[1] - entry[0])]
    return ", ".join(
        f"{run[0][1]}-{run[-1][1]}" if len(run) > 2 else ", ".join(str(n) for _, n in run)
        for run in runs
    )
