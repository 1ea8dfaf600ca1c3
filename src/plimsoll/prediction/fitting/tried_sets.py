"""Turns the attempts of a search into data, and marks those that no other attempt beats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import SWITCH
from plimsoll.prediction.fitting.plan_parts import Tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plimsoll.prediction.fitting.attempts import Attempt


def tried_sets(
    known: Sequence[Attempt], chosen: Attempt, fits: Callable[[Attempt], bool]
) -> Iterator[Tried]:
    """Yields all attempts as data, in the order of `known`.

    Args:
        known: The attempts.
        chosen: The attempt that is the plan.
        fits: Returns whether an attempt fits.
    """
    points = [point for attempt in known if (point := _point(attempt)) is not None]
    for attempt in known:
        prediction, point = attempt.prediction, _point(attempt)
        least = None if prediction is None else attempt.least_use()
        yield Tried(
            changes=[change.name for change in attempt.changes],
            peak_allocated_bytes=None if prediction is None else prediction.peak_allocated_bytes,
            device_used_bytes=None if prediction is None else prediction.device_used_bytes,
            least_used_bytes=None if prediction is None else attempt.least_bytes(),
            step_seconds=attempt.step_seconds,
            fits=fits(attempt),
            keeps_results=all(change.keeps_results for change in attempt.changes),
            is_on_front=point is not None and not any(_is_better(each, point) for each in points),
            failure=attempt.failure,
            short=[change.label for change in attempt.changes],
            is_plan=attempt is chosen,
            options=_options(attempt),
            least_allocator=None if least is None else least.allocator,
            least_conf="" if least is None else least.conf,
        )


def _options(attempt: Attempt) -> list[str]:
    """Returns the options that an attempt sets; none if it also changes the script's text."""
    if not all(change.is_of_options for change in attempt.changes):
        return []
    words = [word for change in attempt.changes for pair in change.arguments for word in pair]
    return [word for word in words if word != SWITCH]


def _point(attempt: Attempt) -> tuple[int, float] | None:
    """Returns the least memory that an attempt needs, and its step time; None if one is unknown."""
    if attempt.prediction is None or attempt.step_seconds is None:
        return None
    return attempt.least_bytes(), attempt.step_seconds


def _is_better(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Returns whether `one` needs less memory or time than `other`, and not more of either."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]
