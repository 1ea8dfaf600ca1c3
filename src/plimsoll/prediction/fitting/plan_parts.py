"""The result of a search over changes, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.page.page_file import ViewResult
    from plimsoll.prediction.not_kept import NotKept
    from plimsoll.prediction.timeline import Timeline
    from plimsoll.prediction.trials.kept_apart import KeptApart
    from plimsoll.recordings.analysis.lines import LineShare


@dataclass(frozen=True)
class PlannedChange:
    """A change to the script that is part of the plan.

    Attributes:
        name: The change in words.
        lines: The lines that the change adds or replaces in the script.
        caveat: How results may differ; "" if they stay the same.
        note: Further advice to the user.
        short: A short name for narrow columns.
    """

    name: str
    lines: list[str]
    caveat: str
    note: str
    short: str


@dataclass(frozen=True)
class Tried:
    """One attempt: the script with some changes, or unchanged, and the memory it took.

    Attributes:
        changes: The names of the changes; none for the unchanged script.
        peak_allocated_bytes: The most bytes in live blocks. This and the other figures are None if
            the attempt failed.
        device_used_bytes: The memory that nvidia-smi would show at the peak, under PyTorch's
            allocator.
        least_used_bytes: The least memory that suffices, under the allocator that needs least.
        step_seconds: The time of a step; None if the attempt failed or the time is unknown.
        fits: Whether it fits, with at least one of the allocators.
        keeps_results: Whether results stay the same.
        is_on_front: Whether no other attempt takes less memory and less time.
        failure: Why it failed, or could not be tried; None for a success.
        short: Short names of the changes for narrow columns.
        is_plan: Whether it is the plan or, if no attempt fits, the one that needs the least.
        options: The script's options that the attempt sets; empty if the attempt also changes the
            script's text.
        least_allocator: The allocator that needs least; None for a failure.
        least_conf: Its settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
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
    options: list[str] = field(default_factory=list)
    least_allocator: str | None = None
    least_conf: str = ""


@dataclass(frozen=True)
class OtherAllocator:
    """An allocator with which a plan fits too.

    Attributes:
        allocator: The allocator.
        conf: Its settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        device_used_bytes: The memory that nvidia-smi would show at the peak.
        command: The shell command, as in `PlanParts`.
    """

    allocator: str
    conf: str
    device_used_bytes: int
    command: str


@dataclass(frozen=True)
class PlanParts:
    """The plan that makes a script fit a card, and all attempts.

    Attributes:
        script: The script.
        gpu: The card.
        within_bytes: The memory of the card for the program, CUDA's context included.
        fits: Whether any attempt fits.
        plan: The chosen changes; empty if the unchanged script fits. If no attempt fits, the
            changes of the attempt that needs the least memory.
        allocator: The allocator under which the script fits with the plan, or needs the least.
        conf: The allocator's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        command: The shell command that runs the changed script, with the options and the allocator
            of the plan. It names CHANGED.py if the changed script was not written to a file.
        patch: The plan as a patch of the script, in the form of `diff -u`.
        peak_allocated_bytes: The most bytes in live blocks, with the plan. If no attempt fits, this
            and the figures below are those of the attempt that needs the least.
        peak_reserved_bytes: The most bytes reserved from the driver.
        device_used_bytes: The memory that nvidia-smi would show at that peak.
        step_seconds: The time of a step; None if unknown.
        slowdown: `step_seconds` divided by the step time of the unchanged script; None if either is
            unknown.
        as_it_is_bytes: The memory of the card that the unchanged script takes.
        device_used_range_bytes: The least and the most that `device_used_bytes` can be if sizes
            depend on data that plimsoll does not know; None if no size does.
        gives_cached_back: Whether the script fits with the plan only because PyTorch releases
            cached memory to the driver in time.
        host_peak_bytes: An estimate of the most host memory that the program uses with the plan;
            None if unknown.
        host_peak_range_bytes: The least and the most that `host_peak_bytes` may be.
        front: The attempts for which no other takes less memory and less time, the fastest first.
        tried: All attempts, in the order in which they were made.
        floor_bytes: The least memory of the card that sufficed for one of the attempts.
        floor_changes: The short names of that attempt's changes.
        floor_held: The bytes at that attempt's peak by category.
        floor_lines: The lines that hold the most at that peak, most first, with their numbers in
            the unchanged script.
        room_bytes: `within_bytes` without CUDA's context.
        before: Memory over the run of the unchanged script, for a picture; None if the script
            allocated nothing.
        after: Memory over the run with the plan.
        simulations: The number of simulations.
        seconds: The total time of the simulations.
        interrupted: Whether the user ended the search early.
        applied: The file that has the changed script, with the command as a comment at its head;
            None if none was written.
        page: The file of the written page; None if no page was written.
        kept_apart: How real files were protected from the script's writes, and which writes were
            refused. Taken from the attempt with the most refused writes. None if the script was
            allowed to write to real files.
        not_kept: The guarantees that the run of the plan or of the unchanged script could not give.
        caveats: Sentences on what limits the answer, such as memory that grows with each step.
        others: The other allocators and settings with which the plan fits, from replays of its run.
            Empty if it fits with PyTorch's own settings.
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
    applied: str | None = None
    page: ViewResult | None = None
    kept_apart: KeptApart | None = None
    not_kept: list[NotKept] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    others: list[OtherAllocator] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, in base units and with stable keys."""
        return asdict(self)
