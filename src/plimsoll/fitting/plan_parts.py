"""What a search over changes says, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PlannedChange:
    """A change of the plan.

    Attributes:
        name: What it does.
        lines: What is added to the script, or stands there instead of what was.
        caveat: How results may differ; "" where they stay what they were.
        note: What to know besides.
    """

    name: str
    lines: list[str]
    caveat: str
    note: str


@dataclass(frozen=True)
class Tried:
    """The script with some changes, or as it is.

    Attributes:
        changes: The names of the changes; none for the script as it is.
        peak_allocated_bytes: The most in live blocks; None, as the others, where it failed.
        device_used_bytes: What nvidia-smi would show at the peak, under PyTorch's allocator.
        least_used_bytes: The same under the allocator that reserves the least.
        step_seconds: How long a step takes; None also where that is not known.
        fits: Whether it fits, with one of the allocators.
        keeps_results: Whether results stay what they were.
        is_on_front: Nothing that was tried takes less memory and less time.
        failure: Why it failed, or could not be tried; else None.
    """

    changes: list[str]
    peak_allocated_bytes: int | None
    device_used_bytes: int | None
    least_used_bytes: int | None
    step_seconds: float | None
    fits: bool
    keeps_results: bool
    is_on_front: bool
    failure: str | None


@dataclass(frozen=True)
class PlanParts:
    """How a script fits.

    Attributes:
        script: The script.
        gpu: The card.
        within_bytes: What the program may take of it, CUDA's context included.
        fits: Whether anything that was tried fits.
        plan: The changes that make it fit for the least time; none where it fits as it is.
        allocator: Under which allocator it fits, or would take the least.
        conf: As PYTORCH_CUDA_ALLOC_CONF.
        command: How to run the changed script.
        patch: The plan as a difference to the script, as `diff -u` has it.
        peak_allocated_bytes: With the plan, the most in live blocks; this and what follows is of
            what takes the least, where nothing fits.
        peak_reserved_bytes: The most taken from the driver.
        device_used_bytes: What nvidia-smi would show at that peak.
        step_seconds: How long a step takes; None where that is not known.
        slowdown: In steps of the script as it is; None likewise.
        as_it_is_bytes: What the script takes of the card as it is.
        front: What nothing takes both less memory and less time than, the least time first.
        tried: All that was tried, in order.
        floor_bytes: The least of the card that anything took that was tried.
        floor_held: At its peak, bytes by category.
        simulations: How many there were.
        seconds: How long they took.
        interrupted: Somebody ended the search early.
    """

    script: str
    gpu: str
    within_bytes: int
    fits: bool
    plan: list[PlannedChange]
    allocator: str
    conf: str
    command: str
    patch: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_used_bytes: int
    step_seconds: float | None
    slowdown: float | None
    as_it_is_bytes: int
    front: list[Tried]
    tried: list[Tried]
    floor_bytes: int
    floor_held: dict[str, int]
    simulations: int
    seconds: float
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys."""
        return asdict(self)
