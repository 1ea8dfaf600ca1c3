"""Sorts advice: leaks first, then by cost, and for equal costs by saving.

The costs, lowest first:

- "nothing": the program computes the same at the same speed, except for driver calls until memory
  has grown to its peak;
- "time": cached memory is released to the driver so that requests are served, as under a limit of
  the program's own; or a step of a changed script takes more than 1 % longer, or an unknown time;
- "bus": memory is written to host memory and read from there;
- "results": the computed results differ.

If a request failed, advice that does not serve it comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from plimsoll.explanation.parts import AdviceCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plimsoll.engine.gpus.recorded_card import RecordedCard
    from plimsoll.explanation.parts import Advice
    from plimsoll.recordings.causes.cause import Cause

COSTS: tuple[AdviceCost, ...] = get_args(AdviceCost)
LEAST_FULL = 0.1
"""The share of a card below which a program's use needs no setting."""
NEARLY_FULL = 0.9
"""The share of a card from which host memory is worth its time."""
LEAST_TIME = 0.01
"""The share of a step below which time counts as no cost."""


def ranked(advice: Iterable[Advice]) -> list[Advice]:
    """Sorts in this module's order; equal savings by the most free memory on the card."""
    return sorted(advice, key=_rank)


def needed(
    advice: Iterable[Advice], causes: Sequence[Cause], card: RecordedCard | None, used_bytes: int
) -> list[Advice]:
    """Leaves out needless advice, and advice that only delays the failure of a growing program.

    Settings and limits help if the program uses at least a tenth of the card, host memory if it
    uses nearly all. If the program grows, another allocator only lets it fail a little later.

    Args:
        advice: The advice.
        causes: The causes found.
        card: The card, if it is known.
        used_bytes: The program's use of the card at its peak.
    """
    share = None if card is None else used_bytes / card.total_bytes
    grows = any(cause.growth_bytes for cause in causes)

    def is_needed(one: Advice) -> bool:
        if one.kind in ("setting", "elastic") and grows:
            return False
        if one.kind in ("leak", "program", "script") or one.serves_failed_requests is not None:
            return True
        return share is None or share >= (NEARLY_FULL if one.kind == "spill" else LEAST_FULL)

    return [one for one in advice if is_needed(one)]


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
