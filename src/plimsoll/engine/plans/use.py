"""Counts a program's requests, their bytes, and the bytes that got their planned place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class PlanUse:
    """How far the large requests on one GPU followed their plan.

    Attributes:
        requests: The number of requests above 1 MiB on the streams that have a plan.
        requested_bytes: The bytes that these requests asked for.
        placed_bytes: The part of `requested_bytes` that got its planned place.
        dropped_after: The number of a stream's requests before the allocator dropped the stream's
            plan; None if no plan was dropped. The allocator drops a plan if less than 80 % of a
            step's bytes got their planned place.
        dropped_share: The share of bytes that got their planned place, from 0 to 1, in the step
            after which the allocator dropped the plan. None if no plan was dropped.
    """

    requests: int
    requested_bytes: int
    placed_bytes: int
    dropped_after: int | None = None
    dropped_share: float | None = None

    @classmethod
    def of_streams(
        cls, streams: Sequence[tuple[int, int, int, tuple[int, int, int] | None]]
    ) -> PlanUse:
        """Adds up the figures of an engine's streams.

        `dropped_after` and `dropped_share` describe only the first stream in `streams` whose plan
        was dropped.
        """
        dropped = next((each[3] for each in streams if each[3] is not None), None)
        return cls(
            requests=sum(each[0] for each in streams),
            requested_bytes=sum(each[1] for each in streams),
            placed_bytes=sum(each[2] for each in streams),
            dropped_after=dropped and dropped[0],
            dropped_share=dropped and dropped[2] / dropped[1],
        )

    def line(self) -> str:
        """Returns a line that says how far the plan was followed, or why it was dropped."""
        if self.dropped_after is not None and self.dropped_share is not None:
            count = format_count(self.dropped_after, "request")
            return (
                f"the plan was dropped after {count} above 1 MiB, because only "
                f"{self.dropped_share:.0%} of a step's bytes lay where the plan says"
            )
        if not self.requests:
            return "the plan has no place for any request above 1 MiB"
        share = self.placed_bytes / self.requested_bytes
        count = format_count(self.requests, "request")
        return f"{share:.1%} of the bytes of {count} above 1 MiB lay where the plan says"
