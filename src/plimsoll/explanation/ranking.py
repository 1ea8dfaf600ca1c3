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
    from collections.abc import Iterable

    from plimsoll.explanation.parts import Advice

COSTS: tuple[AdviceCost, ...] = get_args(AdviceCost)
LEAST_TIME = 0.01
"""The share of a step below which time is no cost."""


def ranked(advice: Iterable[Advice]) -> list[Advice]:
    """In this module's order; of what saves as much, what leaves the most of the card free."""
    return sorted(advice, key=_rank)


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
