"""The memory of each rank of a job, as data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from plimsoll.torch.simulated.serving_use import ServingUse

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class RankUse:
    """The memory that a rank used on its card, or on its fullest card if it used several.

    Figures are None if the rank ended before it reported them, for example because another rank
    failed. `card_used_bytes` is known even then.

    Attributes:
        rank: The rank in the job.
        host: The number of the rank's machine.
        device: The number of the card on that machine.
        peak_allocated_bytes: The most bytes in live blocks.
        peak_reserved_bytes: The most bytes reserved from the driver.
        device_used_bytes: The memory that nvidia-smi would show of this rank at its peak of
            reserved bytes.
        card_used_bytes: The most that nvidia-smi would show of all processes on that card at the
            same time.
        nccl_bytes: The part of `device_used_bytes` that NCCL takes.
        nccl_range_bytes: As the attribute of this name in `PredictionParts`.
        fits: Whether the rank gets all the memory that it requests, beside the other processes on
            its card; None if the rank ended before this was known.
        peak_allocated_range_bytes: As the attribute of this name in `PredictionParts`; None if no
            size in this rank depends on data.
        peak_reserved_range_bytes: As the attribute of this name in `PredictionParts`; None if no
            size in this rank depends on data.
        device_used_range_bytes: The range of `device_used_bytes`, from the ranges of NCCL's memory
            and of reserved memory; None if neither has a range.
        serving: How a serving engine divides the rank's card; None without one.
        stands_for: The number of ranks that this one represents, itself included.
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
    card_used_bytes: int | None = None
    serving: ServingUse | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Makes the object from the result of `asdict`, even after a round trip through JSON."""
        ranges = [name for name in values if name.endswith("_range_bytes")]
        tuples = {name: values[name] and tuple(values[name]) for name in ranges}
        serving = values["serving"] and ServingUse.from_dict(values["serving"])
        return cls(**{**values, **tuples, "serving": serving})


@dataclass(frozen=True)
class SharedCard:
    """A card that several processes use.

    Attributes:
        host: The number of the card's machine.
        device: The number of the card on that machine.
        ranks: The ranks that use the card; empty if the script does not run as a job.
        processes: The number of processes that used it, ranks included.
        together_bytes: The peak of the sum of all processes' memory, in the simulated order.
        at_most_bytes: An upper bound of that peak on a real GPU, where the processes may run in
            another order. Where one process waits for another, the order is the simulated one.
    """

    host: int
    device: int
    ranks: list[int]
    processes: int
    together_bytes: int
    at_most_bytes: int


def with_ranges(ranks: list[RankUse], trials: Iterable[list[RankUse]]) -> list[RankUse]:
    """Returns the ranks with the ranges of their figures, taken over all trials.

    `ranges.py` runs the job several times, each time with other contents of the data whose values
    plimsoll does not know. Each of these runs is a trial.
    """
    of_all = [each for trial in trials for each in trial]
    return [_with_range(each, [one for one in of_all if one.rank == each.rank]) for each in ranks]


def alike(ranks: list[RankUse]) -> list[list[int]]:
    """Returns groups of ranks that have equal figures."""
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
