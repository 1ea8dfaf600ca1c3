"""What an explanation says, as data. Unknown figures are None."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.analysis import LineShare

if TYPE_CHECKING:
    from plimsoll.prediction.parts import GpuUse

OomCause = Literal["limit", "card"]
OomReason = Literal[
    "too_little", "fragmentation", "other_streams", "other_pools", "max_split_size", "unknown"
]
AdviceKind = Literal["leak", "setting", "limit", "elastic", "spill", "program", "script"]
AdviceCost = Literal["nothing", "time", "bus", "results"]


@dataclass(frozen=True)
class CardUse:
    """What the card shows: `shown_bytes == context_bytes + reserved_bytes + other_bytes`.

    Attributes:
        gpu: The card that was named, or None.
        total_bytes: Its memory.
        context_bytes: What a CUDA context takes there.
        context_source: Where that figure is from, such as "measured" or "estimate: ...".
        reserved_bytes: What the allocator had taken of the card, at the peak.
        other_bytes: Other processes and libraries: known only from what the driver had left when a
            request failed.
        shown_bytes: What nvidia-smi would show.
    """

    gpu: str | None
    total_bytes: int | None
    context_bytes: int | None
    context_source: str | None
    reserved_bytes: int
    other_bytes: int | None
    shown_bytes: int | None


@dataclass(frozen=True)
class ReservedUse:
    """Reserved memory taken apart, at the event where it was the most.

    `reserved_bytes == allocated_bytes + pending_bytes + cached_bytes + fragments_bytes`.

    Attributes:
        event: That event.
        step: The step that it is in, from 0, or None.
        reserved_bytes: The whole.
        allocated_bytes: In live blocks, rounding included.
        rounding_bytes: What of them was added to the requests.
        pending_bytes: Freed, but another stream might still use it.
        cached_bytes: Free, in segments that are free as a whole: `empty_cache` would return it.
        fragments_bytes: Free, in segments (or pieces, where they move) that are in use elsewhere:
            it cannot be returned.
        shared_bytes: What of the whole was in shared memory.
        exact: Whether all parts are to the byte what happened.
    """

    event: int
    step: int | None
    reserved_bytes: int
    allocated_bytes: int
    rounding_bytes: int
    pending_bytes: int
    cached_bytes: int
    fragments_bytes: int
    shared_bytes: int
    exact: bool


@dataclass(frozen=True)
class Peak:
    """What was live when the most was allocated.

    Attributes:
        event: The event that reached it.
        step: The step that it is in, from 0, or None.
        seconds: Since the first event; None where times were not recorded.
        allocated_bytes: In live blocks, rounding included.
        requested_bytes: What was asked for; `by_category` without "rounding" adds up to it.
        blocks: How many were live.
        by_category: Bytes by `plimsoll.analysis.CATEGORIES`.
        categories_from: The evidence for the categories: "program", "stacks", "lifetimes", which is
            a guess, or "nothing"; see `plimsoll.analysis.Categories`.
        lines: The source lines that hold the most, most first; of a recording without stacks, none.
    """

    event: int
    step: int | None
    seconds: float | None
    allocated_bytes: int
    requested_bytes: int
    blocks: int
    by_category: dict[str, int]
    categories_from: str
    lines: list[LineShare]


@dataclass(frozen=True)
class PinnedSegment:
    """A segment that live blocks keep from going back to the driver.

    Attributes:
        address: Where it begins; None where it is not recorded, but a replay's.
        total_bytes: Its size.
        free_bytes: What of it is free.
        blocks: How many live blocks pin it.
        lines: Whose they are, most bytes first; named by size where there are no stacks.
    """

    address: int | None
    total_bytes: int
    free_bytes: int
    blocks: int
    lines: list[LineShare]


@dataclass(frozen=True)
class Fragmentation:
    """How the free part of reserved memory lies, after one event.

    Attributes:
        event: That event.
        free_bytes: Free in all of reserved memory.
        holes: In how many pieces.
        largest_hole_bytes: The largest of them, on the stream that has the most memory.
        largest_request_bytes: The largest request there that gets no new memory from the driver:
            tried in the replay. 0 if none above 1 MiB does, None where it cannot be tried.
        movable_bytes: Free in pieces that go to where they are needed, as under the elastic
            allocator; None where memory does not move.
        pinned: The segments that lose the most, most first.
        pinned_segments: How many segments are partly in use.
    """

    event: int
    free_bytes: int
    holes: int
    largest_hole_bytes: int
    largest_request_bytes: int | None
    movable_bytes: int | None
    pinned: list[PinnedSegment]
    pinned_segments: int


@dataclass(frozen=True)
class Leak:
    """Live memory that grows from step to step.

    Attributes:
        what: The source line, or what stands for it without stacks.
        slope_bytes: By how much a step: Theil and Sen's median of slopes.
        confidence: That it is a trend: one less the probability that Mann and Kendall's test gives
            to as much by chance.
        grown_bytes: From the first step looked at to the last.
        blocks: How many more blocks at the last step than at the first.
        last_event: Where such a block was allocated last.
    """

    what: str
    slope_bytes: float
    confidence: float
    grown_bytes: int
    blocks: int
    last_event: int


@dataclass(frozen=True)
class StepsFound:
    """The steps of the program.

    Attributes:
        count: How many; 0 for none found.
        source: "marks" or "rhythm".
        confidence: From 0 to 1.
    """

    count: int
    source: str
    confidence: float


@dataclass(frozen=True)
class OutOfMemory:
    """A request that failed, and why.

    Attributes:
        event: The event.
        asked_bytes: The request, rounded.
        needed_bytes: What the driver was asked for; where memory moves, what no free piece served.
        recorded: Whether it is in the recording; if not, it is what a given limit comes to, and
            what the program does then is not known.
        at: The source line of the request, or None.
        cause: Who refused: the "limit" that the program has, or the "card" that is full.
        reason: Why free memory did not serve. "too_little": all of it in one piece would not have
            been enough. "fragmentation": it would, but no piece is as large. "other_streams" and
            "other_pools": there is such a piece, but for others. "max_split_size": there is one,
            but that setting keeps it for larger requests. "unknown": the replay differs.
        device_free_bytes: What the driver had left; None where the failure is not recorded.
        limit_bytes: The most that could be reserved, if it was given.
        limit_range_bytes: What the recording shows of it: at least, and less than; None where it
            was the card that refused.
        allocated_bytes: In live blocks then.
        reserved_bytes: Reserved then, after cached memory had been returned.
        free_bytes: Free of that, in segments in use.
        largest_hole_bytes: The largest piece of it on the request's own stream and pool.
        returned_bytes: What had been returned to the driver before the request failed.
        missing_bytes: How much more room the request needed even with no byte wasted; 0 if none,
            None where the limit is not known well enough.
    """

    event: int
    recorded: bool
    asked_bytes: int
    needed_bytes: int
    at: str | None
    cause: OomCause
    reason: OomReason
    device_free_bytes: int | None
    limit_bytes: int | None
    limit_range_bytes: tuple[int, int] | None
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_hole_bytes: int
    returned_bytes: int
    missing_bytes: int | None


@dataclass(frozen=True)
class Advice:
    """Something that was tried by replaying, and what it came to.

    Attributes:
        kind: What it changes; "script" was tried by running the script again, simulated.
        what: What to do, in words: one line.
        how: What to copy: a setting, a command, or lines of code.
        cost: What it costs, as `plimsoll.explanation.ranking` has it.
        saves_bytes: Peak reserved memory less than before; of "spill", less dedicated memory. 0
            where requests failed: what counts then is that they are served.
        peak_reserved_bytes: What it came to.
        peak_reserved_range_bytes: The least and the most, where it depends on timing.
        peak_dedicated_bytes: What of it was on the card, where the rest is in shared memory.
        serves_failed_requests: Whether the requests that failed, in the recording or under the
            given limit, were served; None where none failed, and of a leak that was not tried.
        num_alloc_retries: How often cached memory had to be returned to serve a request.
        driver_seconds: Time in driver calls, by the cost model, more than before.
        note: What else to know, or "".
    """

    kind: AdviceKind
    what: str
    how: str
    cost: AdviceCost
    saves_bytes: int
    peak_reserved_bytes: int
    peak_reserved_range_bytes: tuple[int, int] | None
    peak_dedicated_bytes: int | None
    serves_failed_requests: bool | None
    num_alloc_retries: int
    driver_seconds: float
    note: str = ""


@dataclass(frozen=True)
class ScriptRun:
    """A script that was run where there is no GPU, to try changes to it.

    Attributes:
        script: The script.
        arguments: Its arguments.
        gpu: The card that was simulated.
        peak_allocated_bytes: The most in live blocks, of the script as it is.
        peak_reserved_bytes: The most taken from the driver, by the script as it is.
        fits: Whether it got all the memory that it asked for.
        seems_recorded: Whether it can be the recorded program: what both allocate at their peaks
            differs by less than 5 %.
        runs: How often it was run, with changes and without.
    """

    script: str
    arguments: list[str]
    gpu: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool
    seems_recorded: bool
    runs: int


@dataclass(frozen=True)
class ExplanationParts:
    """All that is said of one device's memory.

    Attributes:
        file: What was explained.
        device: The device.
        devices: The memory that the program used of each device. Its `headroom_bytes` are those
            that stay free of the given limit, and of the card if that is known.
        events: How many events were recorded.
        has_history: Whether anything was recorded but the present state, which then is "the peak".
        allocator: The allocator that ran: "native" (PyTorch's), "elastic" or "uncached".
        conf: The configuration it ran with.
        limit_bytes: The limit that was given, or None: then all is as recorded.
        fits_limit: Whether every recorded request is served under it; None where none was given.
        card: What the card shows.
        reserved: Reserved memory taken apart.
        peak: What was live at the peak.
        fragmentation: How free memory lies at the peak of reserved memory, or before the last
            failure.
        num_alloc_retries: How often cached memory had to be returned to serve a request; None
            where the recording does not say.
        steps: The steps of the program.
        leaks: What grows from step to step, fastest first.
        out_of_memory: Each request that failed, in the recording or under the given limit.
        served_requests: How many that failed in the recording are served under the given limit.
        advice: What helps, as `plimsoll.explanation.ranking` orders it.
        tried: How many replays the search for advice made.
        search_ended_early: Whether the search ended before everything was tried.
        script: The script that changes were tried on, or None.
        notes: What limits the explanation.
    """

    file: str
    device: int
    devices: list[GpuUse]
    events: int
    has_history: bool
    allocator: str
    conf: str
    limit_bytes: int | None
    fits_limit: bool | None
    card: CardUse
    reserved: ReservedUse
    peak: Peak
    fragmentation: Fragmentation
    num_alloc_retries: int | None
    steps: StepsFound
    leaks: list[Leak]
    out_of_memory: list[OutOfMemory]
    served_requests: int
    advice: list[Advice]
    tried: int
    search_ended_early: bool
    script: ScriptRun | None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys, None for unknown."""
        return asdict(self)
