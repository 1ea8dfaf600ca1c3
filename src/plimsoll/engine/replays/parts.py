"""What a replay found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.engine.plans.use import PlanUse
    from plimsoll.engine.shared_use import SharedUse


@dataclass(frozen=True)
class Difference:
    """The first place where the replay and the recording part.

    Attributes:
        event: The event's number.
        recorded: Action, address and size as recorded; None if the replay did something more.
        replayed: Action, address and size as replayed; None if the replay did something less.
    """

    event: int
    recorded: tuple[str, int, int] | None
    replayed: tuple[str, int, int] | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

        def entry(value: tuple[str, int, int] | None) -> dict[str, Any] | None:
            return value and {"action": value[0], "address": value[1], "size": value[2]}

        return {
            "event": self.event,
            "recorded": entry(self.recorded),
            "replayed": entry(self.replayed),
        }


@dataclass(frozen=True)
class FirstOom:
    """The first request that failed, after all cached memory had gone back to the driver.

    Attributes:
        event: The event's number.
        tried_bytes: What the driver was asked for.
        allocated_bytes: In live blocks at that moment.
        reserved_bytes: Taken from the driver at that moment.
        at: The innermost line of the program on the request's call stack, as "file:line function",
            if stacks were recorded.
    """

    event: int
    tried_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    at: str | None


@dataclass(frozen=True)
class PeakBreakdown:
    """Where the reserved bytes were when they were the most.

    `reserved_bytes == requested_bytes + rounding_bytes + split_bytes + cached_bytes`.

    Attributes:
        event: The event that reached the peak.
        reserved_bytes: The whole.
        requested_bytes: What the program had asked for, of all blocks not yet reusable.
        rounding_bytes: Added to the requests: rounding up, and block ends too small to split off.
        split_bytes: Free, in segments that are in use elsewhere; they cannot go back to the driver.
        cached_bytes: Free as a whole segment, or in a segment that can shrink.
        pending_free_bytes: Of the first two, what the program had freed already, but another stream
            might still use.
    """

    event: int
    reserved_bytes: int
    requested_bytes: int
    rounding_bytes: int
    split_bytes: int
    cached_bytes: int
    pending_free_bytes: int


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of one replay of one device's history. Unknown figures are None.

    See docs/replay.md.

    Attributes:
        file: What was replayed.
        device: The device's number in it.
        gpu: The card that it was, if the recording names it.
        allocator: "native", "elastic" or "uncached".
        conf: The configuration, as PYTORCH_CUDA_ALLOC_CONF writes it.
        version: The version of PyTorch whose rules were followed.
        limit_bytes: The most that could be reserved; None for no limit.
        limit_source: "given", or "inferred" from the recording, or what the recorded "card" has, or
            None.
        gpu_memory_bytes: The simulated card's dedicated memory; None for more than enough.
        shared_memory_bytes: What may be spilled into besides; None for none.
        peak_allocated_bytes: The most in live blocks.
        peak_active_bytes: The most in blocks not yet reusable.
        peak_reserved_bytes: The most taken from the driver, in both tiers.
        peak_reserved_range_bytes: Least and most of it over three timings of the frees that wait
            for other streams: as recorded, at once, and as late as can be. None where no free
            waits, where a replay ended early, and under the recorded configuration.
        utilization: Peak allocated over peak reserved.
        num_alloc_retries: Requests that were tried again after releasing cached memory.
        num_ooms: Requests that failed.
        fits: Whether the program got all the memory that it got in the recording. If not, the
            replay ends at the request that failed.
        fits_at_any_pace: Whether it did whenever the frees that wait for other streams were done:
            as recorded, at once, and as late as can be. None where only the first was tried, as
            the replay is the recorded run.
        first_oom_event: The event number of the first request that failed.
        first_oom: More about it.
        avoided_ooms: Requests that failed in the recording, but not here.
        events: Events replayed.
        engine_seconds: Time in the engine.
        driver_seconds: Time that the driver calls would take on a GPU, by the cost model.
        matches_recording: Whether every address, every segment and every failure was as recorded;
            None where the run differs from the recording on purpose, or where no segments were
            recorded to compare with.
        first_difference: Where it does not match.
        reconstructed_start: The history does not begin at the first allocation; what was allocated
            before was taken from the final segments, and counters count from the first event.
        emptied_caches: The events before which the program emptied the cache.
        conf_without_effect: Keys of `conf` that change no device memory, each with why.
        peak: Where the bytes were at the peak of reserved memory.
        shared: What spilled, and the least that it costs; None where there is no shared memory.
        plan: How far the requests followed the plan; None where there was none.
        memory_stats: All counters at the end, by the keys of torch.cuda.memory_stats().
    """

    file: str
    device: int
    gpu: str | None
    allocator: str
    conf: str
    version: str
    limit_bytes: int | None
    limit_source: str | None
    gpu_memory_bytes: int | None
    shared_memory_bytes: int | None
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_reserved_range_bytes: tuple[int, int] | None
    utilization: float | None
    num_alloc_retries: int
    num_ooms: int
    fits: bool
    fits_at_any_pace: bool | None
    first_oom_event: int | None
    first_oom: FirstOom | None
    avoided_ooms: int
    events: int
    engine_seconds: float
    driver_seconds: float
    matches_recording: bool | None
    first_difference: Difference | None
    reconstructed_start: bool
    emptied_caches: tuple[int, ...]
    conf_without_effect: tuple[tuple[str, str], ...]
    peak: PeakBreakdown
    shared: SharedUse | None
    plan: PlanUse | None
    memory_stats: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON: base units, stable keys, None for unknown."""
        result = asdict(self)
        result["first_difference"] = self.first_difference and self.first_difference.to_dict()
        result["conf_without_effect"] = dict(self.conf_without_effect)
        return result
