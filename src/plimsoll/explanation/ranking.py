"""Sorts advice: leaks first, then by cost, and for equal costs by saving.

The costs, lowest first:

- "nothing": Results and speed stay the same. Only the first steps may take longer, because the
  allocator then reserves its memory from the driver.
- "time": To serve requests, the allocator releases cached memory to the driver, as under a limit.
  For a changed script: a step takes more than 1 % longer, or its time is unknown.
- "bus": A part of the memory is host memory, which the GPU accesses over the bus.
- "results": The computed results differ.

If a request failed, advice that does not serve it comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from plimsoll.base.units import format_size
from plimsoll.explanation.parts import AdviceCost
from plimsoll.recordings.causes.cause import LEAST_FULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plimsoll.engine.gpus.recorded_card import RecordedCard
    from plimsoll.explanation.parts import Advice
    from plimsoll.recordings.causes.cause import Cause

COSTS: tuple[AdviceCost, ...] = get_args(AdviceCost)
NEARLY_FULL = 0.9
"""Only a program that uses this share of its card or more gets advice to use host memory."""
OF_THE_ALLOCATOR = ("setting", "limit", "elastic", "spill")
_DELAYS = "memory grows with each step, so this only delays the failure"
_BARELY = 0.02
"""If less than this share of the memory stays free, a later request may well fail."""
LEAST_TIME = 0.01
"""Advice that lengthens a step by less than this share does not have the cost "time"."""


def ranked(advice: Iterable[Advice]) -> list[Advice]:
    """Sorts advice as this file describes.

    Among advice with equal savings, the advice with the lower peak on the card comes first.
    """
    return sorted(advice, key=_rank)


def needed(
    advice: Iterable[Advice],
    causes: Sequence[Cause],
    card: RecordedCard | None,
    used_bytes: int,
    room_bytes: int | None = None,
    limit_bytes: int | None = None,
) -> list[Advice]:
    """Drops needless advice, and adds notes to some of the rest.

    If no request failed, advice on the allocator is needless for a program that uses too little of
    its card (see `LEAST_FULL` and `NEARLY_FULL`). A limit on its memory counts as its card. Where
    neither is known, host memory is needless: it makes the program slower, and nothing says that
    the card lacks memory. If a request failed and the program's memory grows much
    (see `Cause.grows_much`), settings and the elastic allocator are needless.

    Notes are added only to advice on the allocator. If memory grows much, the note says that the
    change only delays the failure. Otherwise a note warns of a change that serves the failed
    requests but leaves hardly any memory free.

    Args:
        advice: The advice.
        causes: The causes found.
        card: The card, if it is known.
        used_bytes: The program's use of the card at its peak.
        room_bytes: The most that the program could reserve when a request failed; None if unknown,
            or if no request failed.
        limit_bytes: The most that the program may reserve, if a limit is known.
    """
    rooms = [limit_bytes] if limit_bytes else []
    rooms += [] if card is None else [card.total_bytes]
    share = used_bytes / min(rooms) if rooms else None
    grows = any(cause.grows_much(used_bytes) for cause in causes)

    def is_needed(one: Advice) -> bool:
        if one.kind in ("setting", "elastic") and grows and one.serves_failed_requests is not None:
            return False
        if one.kind in ("leak", "program", "script") or one.serves_failed_requests is not None:
            return True
        if share is None:
            return one.kind != "spill"
        return share >= (NEARLY_FULL if one.kind == "spill" else LEAST_FULL)

    def note_on(one: Advice) -> str:
        if one.note or one.kind not in OF_THE_ALLOCATOR:
            return one.note
        if grows:
            return _DELAYS
        left = (room_bytes or 0) - one.peak_reserved_bytes
        if one.serves_failed_requests and room_bytes and 0 <= left < _BARELY * room_bytes:
            return f"leaves only {format_size(left)} unreserved, so a later request may fail"
        return one.note

    return [replace(one, note=note_on(one)) for one in advice if is_needed(one)]


def _rank(one: Advice) -> tuple[bool, bool, int, int, int, float]:
    on_card = one.peak_dedicated_bytes
    return (
        one.serves_failed_requests is False,
        one.kind != "leak",
        COSTS.index(one.cost),
        -one.saves_bytes,
        one.peak_reserved_bytes if on_card is None else on_card,
        one.driver_seconds,
    )
