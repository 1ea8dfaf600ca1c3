"""What a search over changes says, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.analysis import LineShare
    from plimsoll.page import ViewResult
    from plimsoll.prediction.timeline import Timeline


@dataclass(frozen=True)
class PlannedChange:
    """A change of the plan.

    Attributes:
        name: What it does.
        lines: What is added to the script, or stands there instead of what was.
        caveat: How results may differ; "" where they stay what they were.
        note: What to know besides.
        short: Its name where there is little room.
    """

    name: str
    lines: list[str]
    caveat: str
    note: str
    short: str


@dataclass(frozen=True)
class Tried:
    """The script with some changes, or as it is.

    Attributes:
        changes: The names of the changes; none for the script as it is.
        peak_allocated_bytes: The most in live blocks; None, as the others, where it failed.
        device_used_bytes: What nvidia-smi would show at the peak, under PyTorch's allocator.
        least_used_bytes: The least that it would do with, under the allocator that needs least.
        step_seconds: How long a step takes; None also where that is not known.
        fits: Whether it fits, with one of the allocators.
        keeps_results: Whether results stay what they were.
        is_on_front: Nothing that was tried takes less memory and less time.
        failure: Why it failed, or could not be tried; else None.
        short: The names of the changes where there is little room.
        is_plan: It is the plan, or what took the least where nothing fits.
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
    short: list[str]
    is_plan: bool


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
        command: How to run the changed script, as a line for a shell; CHANGED.py stands for it
            where it was not written.
        patch: The plan as a difference to the script, as `diff -u` has it.
        peak_allocated_bytes: With the plan, the most in live blocks; this and what follows is of
            what takes the least, where nothing fits.
        peak_reserved_bytes: The most taken from the driver.
        device_used_bytes: What nvidia-smi would show at that peak.
        step_seconds: How long a step takes; None where that is not known.
        slowdown: In steps of the script as it is; None likewise.
        as_it_is_bytes: What the script takes of the card as it is.
        device_used_range_bytes: The least and the most that `device_used_bytes` is, by what data is
            like that nobody knows; None where no size depends on such.
        gives_cached_back: It fits only because cached memory goes back to the driver when it is
            needed.
        host_peak_bytes: The most that the program takes of the host's memory, with the plan; an
            estimate, None where it is not known.
        host_peak_range_bytes: The least and the most that this may be.
        front: What nothing takes both less memory and less time than, the least time first.
        tried: All that was tried, in order.
        floor_bytes: The least of the card that anything would do with that was tried.
        floor_changes: With which changes, by their short names.
        floor_held: At its peak, bytes by category.
        floor_lines: The lines that hold the most then, most first, with the numbers that they have
            in the script as it is.
        room_bytes: What the program may take besides CUDA's context.
        before: Memory over the run of the script as it is, for a picture; None where nothing was
            asked for.
        after: The same with the plan.
        simulations: How many there were.
        seconds: How long they took.
        interrupted: Somebody ended the search early.
        page: The page that was written; None for none.
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
    device_used_range_bytes: tuple[int, int] | None
    gives_cached_back: bool
    host_peak_bytes: int | None
    host_peak_range_bytes: tuple[int, int] | None
    front: list[Tried]
    tried: list[Tried]
    floor_bytes: int
    floor_changes: list[str]
    floor_held: dict[str, int]
    floor_lines: list[LineShare]
    room_bytes: int
    before: Timeline | None
    after: Timeline | None
    simulations: int
    seconds: float = field(compare=False)
    interrupted: bool = False
    page: ViewResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys."""
        return asdict(self)
