"""Memory over a run, as data: few points, so that every prediction can keep it."""

from __future__ import annotations

from dataclasses import dataclass

MOST_POINTS = 240


@dataclass(frozen=True)
class Timeline:
    """Live and reserved memory over a part of a run.

    Points divide the part into intervals with equally many events. Each point has the figures at
    the moment of the most allocated bytes in its interval.

    Attributes:
        first_event: The number of the part's first event.
        end_event: The number of the first event after the part.
        by_category: Bytes at each point by category. Their sum is the allocated bytes without the
            unused ends of blocks that the allocator did not split.
        reserved_bytes: The most reserved from the driver in each interval.
        first_step: The number of the step that ends at the first of `step_ends`, counted from 1.
        step_ends: The indices of the points at which a step ends.
    """

    first_event: int
    end_event: int
    by_category: dict[str, list[int]]
    reserved_bytes: list[int]
    first_step: int
    step_ends: list[int]

    @property
    def allocated_bytes(self) -> list[int]:
        """Allocated bytes at each point."""
        return [sum(point) for point in zip(*self.by_category.values(), strict=True)]
