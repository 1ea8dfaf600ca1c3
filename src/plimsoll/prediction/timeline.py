"""The memory use over a run, as a series of points.

The points are few, because plimsoll stores the series with each prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_POINTS = 240


@dataclass(frozen=True)
class Timeline:
    """Live and reserved memory over a part of a run.

    The part is divided into intervals with about equally many events. There is one point for each
    interval.

    Attributes:
        first_event: The number of the part's first event.
        end_event: The number of the first event after the part.
        by_category: For each category, its bytes at one moment of each interval: the moment when
            the most bytes are allocated. The categories add up to the allocated bytes. The
            allocator may give a request a larger free block without splitting the block; the unused
            end of the block does not count.
        reserved_bytes: For each interval, the most bytes that were reserved from the driver.
        first_step: The number of the step that ends at the point `step_ends[0]`. The first step
            of the run has number 1.
        step_ends: The indices of the points at which a step ends, in ascending order.
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
