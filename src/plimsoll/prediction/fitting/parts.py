"""The results of fits, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.prediction.allocator_need import AllocatorNeed
    from plimsoll.prediction.not_kept import NotKept
    from plimsoll.prediction.trials.kept_apart import KeptApart
    from plimsoll.prediction.trials.written import Written

_AS_FAST = 0.9
"""Rates of at least this share of the highest rate count as equally fast."""


@dataclass(frozen=True)
class Trial:
    """One tried value.

    Attributes:
        value: The value.
        fits: Whether the script fits with it and leaves the wanted headroom; False also if the
            script fails for another reason than memory. None if unknown: the script ran with
            unlimited memory and took more than the card has, but part of that was cached.
        device_used_bytes: As in a `Prediction`; up to the failure if the script ran out of memory.
            After a run with unlimited memory, it is the least memory that suffices if the card has
            less, or, if that is unknown, the memory that the run took. None if the script fails.
        step_seconds: As in a `Prediction`; None if the script does not fit.
        samples_per_second: The samples that all ranks process in a second, as in a `Prediction`. If
            a step accumulates the gradients of several batches, the samples of all these batches
            count. None if unknown, or if the script does not fit.
        headroom_bytes: As in a `Prediction`; None if the script ran out of memory or failed.
        error: Why the script fails, if it does.
        host_peak_bytes: As in a `Prediction`.
        host_peak_range_bytes: As in a `Prediction`.
        growth_bytes: The approximate growth of memory in each of the last steps. None if memory did
            not grow in one of these steps, if growth was uneven, or if there were too few steps.
        steps: The number of steps; None if the script fails.
        caveats: Sentences on what limits the verdict, such as memory that grows with each step.
        why_unknown: As in a `Prediction`.
        fits_with: Other allocators and settings with which the script fits and leaves the wanted
            headroom, although it does not fit with its own. Then the live blocks fit, and only
            fragments are too much. Known only after a run with unlimited memory.
        may_not_fit: Whether the script may not fit although `fits` is true: the CUDA context or
            the peak may be larger than estimated, by more than stays free.
    """

    value: int
    fits: bool | None
    device_used_bytes: int | None
    step_seconds: float | None
    headroom_bytes: int | None = None
    error: str | None = None
    host_peak_bytes: int | None = None
    host_peak_range_bytes: tuple[int, int] | None = None
    growth_bytes: int | None = None
    steps: int | None = None
    samples_per_second: float | None = None
    why_unknown: str | None = None
    caveats: list[str] = field(default_factory=list)
    fits_with: list[AllocatorNeed] = field(default_factory=list)
    may_not_fit: bool = False

    @property
    def is_doubtful(self) -> bool:
        """Whether a run on the card could not tell whether the script fits for certain."""
        return self.error is None and (self.may_not_fit or self.why_unknown is not None)


@dataclass(frozen=True)
class FitParts:
    """The result of a fit for one card.

    Attributes:
        gpu: The card.
        vary: The name of the script's argument for which the fit tried values.
        largest: The largest tried value that fits for certain; None if none does.
        smallest_failing: The smallest value above `largest` that does not fit, or with which the
            script fails; None if there was none.
        stopped: Why the search ended although a larger value than `largest` may fit; None if
            `largest` is close enough to a tried value that does not fit, or may not fit.
        multiple_of: The search tried only multiples of this number, as the caller or the script
            demanded.
        total_bytes: The part of the card's memory that the script can have.
        used_bytes: The memory of the card that other programs already have.
        headroom_bytes: The memory that had to stay free.
        curve: Every tried value, sorted.
        seconds: The time of the predictions.
        written: The files that the script wrote in any trial, as in a `Prediction`. If several
            trials wrote to a path, the largest of these files.
        kept_apart: How real files were protected from the script's writes, and which writes were
            refused. Taken from the trial with the most refused writes. None if the script was
            allowed to write to real files.
        not_kept: The guarantees that some trial could not give.
        world_size: The number of the job's ranks; 1 if the script is no job.
        may_fit: The largest tried value between `largest` and `smallest_failing` that may fit: its
            trial has `may_not_fit` or `why_unknown`. None if there is none.
    """

    gpu: str
    vary: str
    largest: int | None
    smallest_failing: int | None
    stopped: str | None
    multiple_of: int
    total_bytes: int
    used_bytes: int
    headroom_bytes: int
    curve: list[Trial]
    seconds: float
    written: list[Written]
    kept_apart: KeptApart | None = None
    not_kept: list[NotKept] = field(default_factory=list)
    world_size: int = 1
    may_fit: int | None = None

    @property
    def fastest(self) -> tuple[int, float] | None:
        """The batch size with the most samples a second, and that rate.

        None if no batch size was varied, or if the samples of a step are unknown.

        Times are estimates, so several sizes may count as equally fast. The largest of these is
        returned.
        """
        if "batch" not in self.vary.lower():
            return None
        rates = [(t.value, t.samples_per_second) for t in self.curve if t.samples_per_second]
        most = max((rate for _, rate in rates), default=0.0)
        return max((each for each in rates if each[1] >= _AS_FAST * most), default=None)

    @property
    def is_open(self) -> bool:
        """Whether no tried value fits for certain, and one may fit."""
        return self.largest is None and self.may_fit is not None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, in base units and with stable keys."""
        return asdict(self)
