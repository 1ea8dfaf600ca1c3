"""The parts of an explanation as plain data; None means unknown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.recordings.analysis.leaks import Leak
from plimsoll.recordings.analysis.lines import LineShare

if TYPE_CHECKING:
    from plimsoll.prediction.parts import GpuUse
    from plimsoll.recordings.causes.cause import Cause

OomCause = Literal["limit", "card"]
OomReason = Literal[
    "too_little", "fragmentation", "other_streams", "other_pools", "max_split_size", "unknown"
]
AdviceKind = Literal["leak", "setting", "limit", "elastic", "spill", "program", "script"]
AdviceCost = Literal["nothing", "time", "bus", "results"]


@dataclass(frozen=True)
class CardUse:
    """The use of the card: `shown_bytes == context_bytes + reserved_bytes + other_bytes`.

    Attributes:
        gpu: The card's name; None if neither the caller nor the recording names the card.
        total_bytes: The card's memory.
        context_bytes: The memory of a CUDA context on this card; less if a failed request shows
            that the process held less.
        context_source: The source of `context_bytes`, such as "measured" or "estimate: ...".
        reserved_bytes: The allocator's memory on the card at the peak.
        other_bytes: The memory of other processes and libraries. Only a failed request shows it,
            because PyTorch then records how much memory the driver had left.
        shown_bytes: The memory that nvidia-smi would show.
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
    """The parts of reserved memory when it was at its peak.

    `reserved_bytes == allocated_bytes + pending_bytes + cached_bytes + fragments_bytes`.

    Attributes:
        event: The event of the peak. If reserved memory stays at its peak, this is the event with
            the most live memory.
        step: The step of the event, from 0, or None.
        reserved_bytes: All reserved bytes.
        allocated_bytes: Bytes in live blocks, rounding included.
        rounding_bytes: The part of `allocated_bytes` that exceeds the requested sizes.
        pending_bytes: Bytes that the program has freed but another stream may still use.
        cached_bytes: Free bytes in wholly free segments. `empty_cache` would release them.
        fragments_bytes: Free bytes in segments that are partly in use. Under the elastic allocator:
            free bytes in granules, pieces of 2 MiB, that are partly in use. They cannot be
            released.
        shared_bytes: The part of reserved memory in shared memory.
        exact: Whether all parts are exact to the byte.
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
    """The live blocks when the most bytes were allocated.

    Attributes:
        event: The event of the peak.
        step: The step of the event, from 0, or None.
        seconds: The time since the first event; None if times were not recorded.
        allocated_bytes: The bytes in live blocks, rounding included.
        requested_bytes: The requested bytes: the sum of `by_category` without "rounding".
        blocks: The number of live blocks.
        by_category: The bytes of each category. The categories' names are those of
            `plimsoll.recordings.analysis.category_names.CATEGORIES`.
        categories_from: The evidence for the categories: "program", "stacks", "lifetimes" or
            "nothing"; see `plimsoll.recordings.analysis.categories.Categories`. Categories from
            lifetimes are a guess.
        lines: The source lines that hold the most bytes, largest first; empty without recorded
            stacks.
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
    """A segment that cannot be released to the driver, because some of its blocks are live.

    Attributes:
        address: Its first address; None for a segment that exists only in a replay.
        total_bytes: Its size.
        free_bytes: Its free bytes.
        blocks: The number of its live blocks.
        lines: The source lines of its live blocks, largest first; without stacks, the sizes of
            these blocks.
    """

    address: int | None
    total_bytes: int
    free_bytes: int
    blocks: int
    lines: list[LineShare]


@dataclass(frozen=True)
class Fragmentation:
    """The free part of reserved memory after one event.

    Attributes:
        event: The event.
        free_bytes: The free bytes of all reserved memory.
        holes: The number of free pieces.
        largest_hole_bytes: The largest free piece on the stream that has the most memory.
        largest_request_bytes: The largest request that the free memory of that stream serves in a
            replay; 0 if it serves none above 1 MiB. None without a replay, or under an allocator
            that moves free memory.
        movable_bytes: The free bytes in pieces that the elastic allocator can move; None under an
            allocator that moves no memory.
        pinned: The partly used segments with the most free bytes, largest first.
        pinned_segments: The number of all segments that are partly in use.
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
class StepsFound:
    """The steps of the program.

    Attributes:
        count: The number of steps; 0 if none were found.
        source: "marks" if the program marked its steps, "rhythm" if they were detected.
        confidence: How certain plimsoll is that these are the steps, from 0 to 1.
    """

    count: int
    source: str
    confidence: float


@dataclass(frozen=True)
class OutOfMemory:
    """A failed request, and why it failed.

    Attributes:
        event: The event.
        asked_bytes: The requested bytes, rounded up.
        needed_bytes: The bytes that the allocator requested from the driver; under the elastic
            allocator only the part that no free piece could serve.
        recorded: Whether the failure was recorded. Otherwise the failure follows from a given
            limit, and what the program would do next is unknown.
        at: The source line of the request, or None.
        cause: "limit" if the program's limit refused the request, "card" if the card was full.
        reason: Why free memory did not serve the request:
            - "too_little": all free memory together is too small.
            - "fragmentation": no free piece is large enough.
            - "other_streams", "other_pools": a large enough piece belongs to another stream or
              pool.
            - "max_split_size": the setting max_split_size_mb keeps a large enough piece for larger
              requests.
            - "unknown": the replay differs from the recorded run.
        device_free_bytes: The memory that the driver had left; None if the failure was not
            recorded.
        limit_bytes: The most that the program may reserve, if a limit was given.
        limit_range_bytes: The recorded failure shows that the limit is at least the first number
            and less than the second. They differ by 1 if the recording names the limit. None if
            the card refused the request, or if the failure was not recorded.
        allocated_bytes: The bytes in live blocks at that moment.
        reserved_bytes: The reserved bytes at that moment, after PyTorch released cached memory.
        free_bytes: The free part of the reserved bytes, in segments that are in use.
        largest_hole_bytes: The largest free piece on the request's own stream and pool.
        returned_bytes: The bytes that PyTorch released to the driver before the failure.
        missing_bytes: The bytes by which the request exceeds all free memory under the limit or on
            the card; 0 if it does not. None if the limit is unknown.
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
    """Advice, and the result of its trial.

    Attributes:
        kind: The kind of change. plimsoll tries a change of kind "script" by a simulated run of the
            script, and all others by a replay.
        what: The change in one line of words.
        how: The text to copy: a setting, a command, or lines of code.
        cost: The cost of the change, in the words of `plimsoll.explanation.ranking`.
        saves_bytes: The saving in peak reserved memory, or on the card if the trial uses shared
            memory. 0 if the advice is for requests that failed, or if it was not tried.
        peak_reserved_bytes: The peak of reserved memory in the trial.
        peak_reserved_range_bytes: The least and the most of `peak_reserved_bytes`, if it depends on
            timing.
        peak_dedicated_bytes: The part of the peak on the card, if the rest is in shared memory.
        serves_failed_requests: Whether the trial served the requests that failed in the recording,
            under the given limit, or in the run of the unchanged script. None if no request
            failed, or if the advice was not tried.
        num_alloc_retries: The number of requests for which PyTorch had to release cached memory.
        driver_seconds: How much longer the driver calls take in the trial than without the change,
            by plimsoll's cost model of the driver.
        bus_seconds: The least time that spilled bytes take over the bus.
        note: A remark that the user reads with the advice, such as a doubt or a cost; or "".
        was_tried: Whether a trial shows what the change does. If not, the peak and the number of
            retries are those of the unchanged program.
    """

    kind: AdviceKind
    what: str
    how: str
    cost: AdviceCost
    saves_bytes: int
    peak_reserved_bytes: int
    peak_reserved_range_bytes: tuple[int, int] | None = None
    peak_dedicated_bytes: int | None = None
    serves_failed_requests: bool | None = None
    num_alloc_retries: int = 0
    driver_seconds: float = 0.0
    bus_seconds: float = 0.0
    note: str = ""
    was_tried: bool = True


@dataclass(frozen=True)
class ScriptRun:
    """A script that plimsoll ran without a GPU, to try changes of it.

    Attributes:
        script: The script.
        arguments: Its arguments.
        gpu: The simulated card.
        peak_allocated_bytes: The most bytes in live blocks of the unchanged script.
        peak_reserved_bytes: The most that the unchanged script reserved from the driver.
        fits: Whether the script got all the memory that it requested.
        seems_recorded: Whether the script may be the recorded program: their peaks of allocated
            memory differ by less than 5 %.
        runs: The number of runs, with changes and without.
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
    """The explanation of one device's memory.

    Attributes:
        file: The name of the source.
        device: The device.
        devices: The program's use of each device. A device's `headroom_bytes` are the bytes left at
            the peak under the given limit or on the known card, whichever leaves less.
        events: The number of recorded events.
        has_history: Whether the recording has a history. Otherwise its final state counts as the
            peak.
        allocator: The allocator that ran: "native" (PyTorch's), "elastic" or "uncached".
        conf: The allocator's configuration.
        limit_bytes: The given limit; None for the figures as recorded.
        fits_limit: Whether `limit_bytes` serves every recorded request; None without a limit.
        card: The use of the card.
        reserved: The parts of reserved memory.
        peak: The live blocks at the peak.
        fragmentation: The free memory at the peak of reserved memory, or before the last failure.
        num_alloc_retries: The number of requests for which PyTorch had to release cached memory;
            None if the recording has no count.
        run_seconds: The time from the first event to the last; the costs of advice are given as a
            share of it. None if the recording has no times.
        steps: The steps of the program.
        leaks: The lines whose memory grows from step to step, the fastest first.
        out_of_memory: Each request that failed, in the recording or under the given limit.
        served_requests: The number of requests that failed in the recording but are served under
            the given limit.
        advice: The advice, in the order of `plimsoll.explanation.ranking`.
        tried: The number of replays in the search for advice.
        search_ended_early: Whether the search ended before it had tried everything.
        script: The script that changes were tried on, or None.
        causes: The causes of the memory's use, the most telling first.
        notes: Sentences that say what the explanation leaves out or cannot know.
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
    causes: list[Cause] = field(default_factory=list)
    run_seconds: float | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON: in base units, with stable keys, None for unknown."""
        return asdict(self)
