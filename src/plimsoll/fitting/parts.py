"""What fits say, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.prediction.parts import Written


@dataclass(frozen=True)
class Trial:
    """One value that was tried.

    Attributes:
        value: The value.
        fits: Whether the script fits with it.
        device_used_bytes: As in a `Prediction`; up to the failure, where it does not fit.
        step_seconds: As in a `Prediction`; None where it does not fit.
        host_peak_bytes: As in a `Prediction`.
        host_peak_range_bytes: Likewise.
    """

    value: int
    fits: bool
    device_used_bytes: int
    step_seconds: float | None
    host_peak_bytes: int | None = None
    host_peak_range_bytes: tuple[int, int] | None = None


@dataclass(frozen=True)
class FitParts:
    """What was found for one card.

    Attributes:
        gpu: The card.
        vary: The argument.
        largest: The largest value that fits; None if not even 1 does.
        stopped: Why nothing above `largest` was tried, so that larger values may fit, too; None
            where the next one does not.
        curve: Every value that was tried, sorted.
        seconds: Time that the predictions took.
        written: What the script wrote in any of the trials, as in a `Prediction`; of a path that
            several wrote, the largest.
    """

    gpu: str
    vary: str
    largest: int | None
    stopped: str | None
    curve: list[Trial]
    seconds: float
    written: list[Written]

    @property
    def fastest(self) -> tuple[int, float] | None:
        """The batch size with the most samples a second; None where no batch was varied."""
        if "batch" not in self.vary:
            return None
        rates = [(t.value, t.value / t.step_seconds) for t in self.curve if t.step_seconds]
        return max(rates, key=lambda rate: rate[1], default=None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
