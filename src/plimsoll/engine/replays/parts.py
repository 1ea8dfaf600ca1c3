"""The results of a replay, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.engine.plans.use import PlanUse
    from plimsoll.engine.shared_use import SharedUse


@dataclass(frozen=True)
class Difference:
    """The first event at which the replay differs from the recording.

    Attributes:
        event: The event's number.
        recorded: Action, address and size as recorded; None if only the replay has the event.
        replayed: Action, address and size as replayed; None if only the recording has the event.
    """

    event: int
    recorded: tuple[str, int, int] | None
    replayed: tuple[str, int, int] | None

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON."""

        def entry(value: tuple[str, int, int] | None) -> dict[str, Any] | None:
            return value and {"action": value[0], "address": value[1], "size": value[2]}

        return {
            "event": self.event,
            "recorded": entry(self.recorded),
            "replayed": entry(self.replayed),
        }


@dataclass(frozen=True)
class FirstOom:
    """The first request that failed although the whole cache had been returned to the driver.

    Attributes:
        event: The event's number.
        tried_bytes: Bytes that the allocator asked the driver for.
        allocated_bytes: Bytes in live blocks at that moment.
        reserved_bytes: Bytes reserved from the driver at that moment.
        at: The innermost line of the program on the request's call stack, as "file:line function";
            None if stacks were not recorded.
    """

    event: int
    tried_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    at: str | None


@dataclass(frozen=True)
class PeakBreakdown:
    """The parts of reserved memory at its peak.

    `reserved_bytes == requested_bytes + rounding_bytes + split_bytes + cached_bytes`.

    Attributes:
        event: The event with the most live memory among those at which reserved memory was at its
            peak.
        reserved_bytes: All reserved bytes.
        requested_bytes: Bytes that the program requested, in live blocks and in freed blocks that
            another stream might still use.
        rounding_bytes: Bytes that the allocator added by rounding requests up, or because the rest
            of a block was too small to split off.
        split_bytes: Free bytes that cannot be returned to the driver, because their segments are
            partly in use.
        cached_bytes: Free bytes in wholly free segments, or in segments that can shrink.
        pending_free_bytes: The part of `requested_bytes` and `rounding_bytes` that the program had
            freed, but that another stream might still use.
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
    """The outcome of one replay of one device's history; None means unknown.

    See docs/replay.md.

    Attributes:
        file: The replayed file.
        device: The device's number in the file.
        gpu: The recorded card's name, if the recording has it.
        allocator: "native", "elastic" or "uncached".
        conf: The configuration, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        version: The version of PyTorch whose rules the replay followed.
        limit_bytes: The most that could be reserved; None for no limit.
        limit_source: The origin of the limit: "given", "recorded" with the history, "inferred"
            from the history, "card" for the recorded card's memory, or None.
        gpu_memory_bytes: The simulated card's dedicated memory; None if the card is larger than
            any program needs.
        shared_memory_bytes: The host memory that the GPU may use; None if requests cannot spill
            into it.
        peak_allocated_bytes: The most in live blocks.
        peak_active_bytes: The most in live blocks and in freed blocks that another stream might
            still use.
        peak_reserved_bytes: The most reserved from the driver, in dedicated and shared memory
            together.
        peak_reserved_range_bytes: The lowest and the highest peak of reserved memory under three
            timings of the frees that wait for other streams: as recorded, immediate, and as late
            as possible. None if no free waits, if a replay ended early, or if the replay is the
            recorded run.
        utilization: Peak allocated over peak reserved.
        num_alloc_retries: Requests that were tried again after releasing cached memory.
        num_ooms: Requests that failed.
        fits: Whether the program got all the memory that it got in the recording. If not, the
            replay ends at the failed request.
        fits_at_any_pace: Whether the program fits under all three timings of the frees that wait
            for other streams: as recorded, immediate, and as late as possible. None if only the
            recorded timing was tried, because the replay is the recorded run.
        first_oom_event: The event number of the first request that failed.
        first_oom: Details of that request.
        avoided_ooms: Requests that failed in the recording but not in the replay.
        events: Events replayed.
        engine_seconds: Time spent in the engine.
        driver_seconds: Time that the driver calls would take on a GPU, by plimsoll's cost model of
            the driver.
        matches_recording: Whether every address, segment and failure was as recorded. None if the
            replay has an allocator or settings other than the recorded ones, if the recorded
            allocator is not PyTorch's, or if the recording has no segments to compare.
        first_difference: The first difference from the recording, if there is one.
        reconstructed_start: Whether the history begins after the first allocation. Older blocks
            are then derived from the final segments, and counters start at the first event.
        emptied_caches: The events before which the program emptied the cache.
        conf_without_effect: Keys of `conf` that change no device memory, each with the reason.
        peak: The parts of reserved memory at its peak.
        shared: The use of shared memory and a lower bound of its cost; None without shared memory.
        plan: How far the requests followed the plan; None without a plan.
        memory_stats: All counters at the end, by the keys of `torch.cuda.memory_stats()`.
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
        """Returns the result for JSON, in base units and with stable keys; None means unknown."""
        result = asdict(self)
        result["first_difference"] = self.first_difference and self.first_difference.to_dict()
        result["conf_without_effect"] = dict(self.conf_without_effect)
        return result
