"""Orders advice: leaks first, then by cost, and for equal costs by saving.

The costs are, the least first:

- "nothing": the program computes the same, as fast as before, but for driver calls until memory has
  grown to its peak;
- "time": cached memory goes back to the driver so that requests are served, as under a limit of the
  program's own; or a step of a changed script takes more than 1 % longer, or an unknown time;
- "bus": memory is written to the host's memory, and read from there;
- "results": what is computed differs.

Where a request failed, what does not serve it comes after all that does.
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
"""The share of a card below which what a program takes of it needs no setting."""
NEARLY_FULL = 0.9
"""The share from which host memory is worth its time."""
LEAST_TIME = 0.01
"""The share of a step below which time is no cost."""


def ranked(advice: Iterable[Advice]) -> list[Advice]:
    """In this module's order; of what saves as much, what leaves the most of the card free."""
    return sorted(advice, key=_rank)


def needed(
    advice: Iterable[Advice], causes: Sequence[Cause], card: RecordedCard | None, used_bytes: int
) -> list[Advice]:
    """Leave out needless advice, and advice that only puts off the end of a program that grows.

    Settings and limits help a card that is at least a tenth full, and host memory one that is
    nearly full. Where a program grows, another allocator lets it fail a little later.

    Args:
        advice: The advice.
        causes: The causes that were found.
        card: The card, if it is known.
        used_bytes: The part of it that the program takes at its peak.
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
