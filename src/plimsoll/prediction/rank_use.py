"""What each rank of a job takes, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class RankUse:
    """What one rank takes of the card that it fills most.

    Figures are None where the rank was ended before it told any, as when another rank failed.

    Attributes:
        rank: Of the job.
        host: The number of its machine.
        device: The card there.
        peak_allocated_bytes: The most in live blocks.
        peak_reserved_bytes: The most taken from the driver.
        device_used_bytes: What nvidia-smi would show at that peak, of this rank.
        nccl_bytes: What of that is NCCL's.
        nccl_range_bytes: As in a `PredictionParts`.
        fits: Whether the rank gets all the memory it asks for.
        peak_allocated_range_bytes: As in a `PredictionParts`; None where none of this rank's sizes
            depends on data.
        peak_reserved_range_bytes: Likewise.
        device_used_range_bytes: Of `device_used_bytes`, by the range of NCCL's and of what PyTorch
            reserves; None where neither has one.
        stands_for: How many ranks are taken to be like this one, itself included.
    """

    rank: int
    host: int
    device: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    nccl_bytes: int | None = None
    nccl_range_bytes: tuple[int, int] | None = None
    fits: bool | None = None
    peak_allocated_range_bytes: tuple[int, int] | None = None
    peak_reserved_range_bytes: tuple[int, int] | None = None
    device_used_range_bytes: tuple[int, int] | None = None
    stands_for: int = 1

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `asdict`, also by way of JSON."""
        ranges = [name for name in values if name.endswith("_range_bytes")]
        return cls(**{**values, **{name: values[name] and tuple(values[name]) for name in ranges}})


@dataclass(frozen=True)
class SharedCard:
    """A card that several ranks use.

    Attributes:
        host: The number of its machine.
        device: The card there.
        ranks: Those that use it.
        most_bytes: What nvidia-smi would show of the rank that takes the most there, at its peak.
        others_bytes: Of the others together, each at its own.
    """

    host: int
    device: int
    ranks: list[int]
    most_bytes: int
    others_bytes: int


def with_ranges(ranks: list[RankUse], trials: Iterable[list[RankUse]]) -> list[RankUse]:
    """Ranks, each with the range that it had in several trials."""
    of_all = [each for trial in trials for each in trial]
    return [_with_range(each, [one for one in of_all if one.rank == each.rank]) for each in ranks]


def alike(ranks: list[RankUse]) -> list[list[int]]:
    """The ranks that took the same, in groups."""
    groups: dict[RankUse, list[int]] = {}
    for use in ranks:
        groups.setdefault(replace(use, rank=0, host=0, device=0), []).append(use.rank)
    return list(groups.values())


def _with_range(use: RankUse, trials: list[RankUse]) -> RankUse:
    return replace(
        use,
        peak_allocated_range_bytes=_hull(each.peak_allocated_range_bytes for each in trials),
        peak_reserved_range_bytes=_hull(each.peak_reserved_range_bytes for each in trials),
        device_used_range_bytes=_hull(each.device_used_range_bytes for each in trials),
    )


def _hull(ranges: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    known = [bounds for bounds in ranges if bounds is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)
