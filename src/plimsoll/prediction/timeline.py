"""Memory over a run, as data: few enough points to be kept with every prediction."""

from __future__ import annotations

from dataclasses import dataclass

MOST_POINTS = 240


@dataclass(frozen=True)
class Timeline:
    """What was live and what was reserved, over a part of a run that is divided evenly by events.

    Each point stands for the moment of its part at which the most was allocated.

    Attributes:
        first_event: Where it begins.
        end_event: Where it ends, the first event that is not in it.
        by_category: Bytes at each point, of the categories that there are; together they are what
            was allocated, but for what blocks were not split further.
        reserved_bytes: The most that was taken from the driver, in each part.
        first_step: The number of the step whose end is the first of `step_ends`; 1 is the first.
        step_ends: The points at which a step ends.
    """

    first_event: int
    end_event: int
    by_category: dict[str, list[int]]
    reserved_bytes: list[int]
    first_step: int
    step_ends: list[int]

    @property
    def allocated_bytes(self) -> list[int]:
        """At each point."""
        return [sum(point) for point in zip(*self.by_category.values(), strict=True)]
