"""Replays a recording: chooses the settings and compares the result with the recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.units import parse_memory
from plimsoll.engine.gpus.recorded_card import recorded_card
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.engine.plans.program_plan import Plan, require_elastic
from plimsoll.engine.plans.use import PlanUse
from plimsoll.engine.replays.parts import Difference, FirstOom, PeakBreakdown, ReplayResult
from plimsoll.engine.replays.results import Replays
from plimsoll.engine.shared_use import SharedUse
from plimsoll.engine.simulator.allocator import check_allocator
from plimsoll.recordings.analysis.lines import NO_LINE, source_line
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import DeviceTrace, Recording, limit_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from plimsoll.engine.gpus.recorded_card import RecordedCard
    from plimsoll.engine.protocol import AllocatorName

    Progress = Callable[[int, int], None]

AMPLE_MEMORY = 1 << 40
"""The memory of a simulated card whose size is unknown: more than enough."""

# The allocator records one of these events after a limit or the driver has refused memory. The
# first two release segments. "oom" says that the request fails.
_RELEASES = ("segment_free", "segment_unmap", "oom")


def replay(
    source: str | PathLike[str] | Recording,
    *,
    allocator: AllocatorName = "native",
    conf: str | None = None,
    limit: int | str | None = None,
    gpu_memory: int | str | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    version: str | None = None,
    plan: str | PathLike[str] | Plan | None = None,
    progress: Progress | None = None,
) -> Replays:
    """Replays every device's history in a recording.

    Under the recorded configuration the replay is compared with the recording, address by address.
    Under any other configuration, the result shows how much memory the program would have
    needed.

    >>> import plimsoll
    >>> (result,) = plimsoll.replay("run.pickle", limit="24GiB")  # doctest: +SKIP
    >>> result.fits  # doctest: +SKIP
    True

    Args:
        source: A file, or a recording read from one.
        allocator: "native" follows PyTorch's rules. "elastic" is plimsoll's own. "uncached" calls
            the driver for each request.
        conf: The configuration, in the syntax of PYTORCH_CUDA_ALLOC_CONF; by default the recorded
            one.
        limit: The most memory that may be reserved, such as "24GiB". It acts like a memory
            fraction or a smaller card. If neither a limit nor the size of a card is given, plimsoll
            infers the limit from the recording. If the recording shows no limit, a replay under
            other settings is limited to the memory of the recorded card. That requires that the
            recording names the card, and that the program used no shared memory.
        gpu_memory: The memory of the simulated card, all of it for PyTorch. The default is more
            than any program needs.
        dedicated: The card's memory, in place of `gpu_memory`. Requests beyond it get shared
            memory: host memory that the GPU uses directly. With "elastic" the allocator decides
            which requests spill; with "native" and "uncached" the driver does, as on Windows.
        shared: The size of the shared memory. Give it if, and only if, you give `dedicated`.
        version: The PyTorch version whose rules the replay follows, such as "2.11"; by default the
            recorded one, or the one inferred from the recording (`Recording.version`).
        plan: A plan, which has an address for each large request, or the plan's file. Only
            "elastic" follows plans (docs/plans.md).
        progress: Called at intervals with the number of replayed events and of all events.

    Returns:
        One result for each device that has events; they print as a table.

    Raises:
        InputError: If the recording, the configuration or a size cannot be used.
    """
    check_allocator(allocator)
    tiers = _tiers(gpu_memory, dedicated, shared)
    if plan is not None:
        require_elastic(allocator)
        plan = plan if isinstance(plan, Plan) else read_plan(plan)
    recording = source if isinstance(source, Recording) else read_recording(source)
    version = _plain_version(version or recording.version)
    if allocator != "native" and conf:
        raise InputError(f"the {allocator} allocator takes no configuration")
    recorded_conf = _recorded_conf(recording, version, is_replaced=conf is not None)
    given_conf = None if conf is None else _checked(conf, version, "the given")
    plans = {} if plan is None else _own_plans(plan, recording)
    results = Replays()
    for trace in recording.devices:
        request = _Request(
            name=recording.name,
            allocator=allocator,
            conf=recorded_conf if given_conf is None else given_conf,
            version=version,
            limit=None if limit is None else parse_memory(limit),
            gpu_memory=tiers[0],
            shared_memory=tiers[1],
            card=recorded_card(recording.settings, trace.device),
            recorded_allocator=recording.allocator,
            recorded_limits=tuple(recording.limits_of(trace.device)),
            plan=plans.get(trace.device),
        )
        try:
            results.append(_replay_device(trace, request, recorded_conf, progress))
        except (InputError, _core.ReplayError, _core.DriverError) as error:
            raise InputError(f"{recording.name}: device {trace.device}: {error}") from None
    return results


@dataclass(frozen=True)
class _Request:
    """The settings of one device's replay."""

    name: str
    allocator: AllocatorName
    conf: str
    version: str
    limit: int | None
    gpu_memory: int | None
    shared_memory: int | None
    card: RecordedCard | None
    recorded_allocator: str
    recorded_limits: tuple[int | None, ...] = ()
    plan: _core.ProgramPlan | None = None


def _own_plans(plan: Plan, recording: Recording) -> dict[int, _core.ProgramPlan]:
    """Returns the recorded process's part of the plan, by device.

    Raises:
        InputError: If the plan has no part for any device of the recording.
    """
    rank = None if recording.process is None else recording.process.rank
    devices = [trace.device for trace in recording.devices]
    parts = {device: plan.for_process(rank, device) for device in devices}
    own = {device: part for device, part in parts.items() if part is not None}
    if devices and not own:
        whose = "" if rank is None else f"rank {rank}, "
        numbers = ", ".join(map(str, devices))
        raise InputError(f"{recording.name}: the plan has no part for {whose}device {numbers}")
    return own


def _tiers(
    gpu_memory: int | str | None, dedicated: int | str | None, shared: int | str | None
) -> tuple[int | None, int | None]:
    if (dedicated is None) != (shared is None):
        raise InputError(
            "--dedicated and --shared go together (dedicated and shared in Python); for a smaller "
            "card without shared memory give --gpu-memory (gpu_memory)"
        )
    if dedicated is not None and gpu_memory is not None:
        raise InputError(
            "--gpu-memory (gpu_memory) and --dedicated (dedicated) both say how large the card is; "
            "give one of them"
        )
    card = gpu_memory if dedicated is None else dedicated
    return (
        None if card is None else parse_memory(card),
        None if shared is None else parse_memory(shared),
    )


def _plain_version(version: str) -> str:
    try:
        return _core.plain_version(version)
    except _core.ConfigError as error:
        raise InputError(str(error)) from None


def _recorded_conf(recording: Recording, version: str, *, is_replaced: bool) -> str:
    """Returns the recorded configuration. If `is_replaced`, an invalid one becomes "".

    Raises:
        InputError: If the configuration is invalid and not replaced.
    """
    try:
        return _checked(recording.conf, version, f"{recording.name}: the recorded")
    except InputError as error:
        if is_replaced:
            return ""
        raise InputError(f"{error}; --conf '' replays under PyTorch's defaults") from None


def _checked(conf: str, version: str, which: str) -> str:
    try:
        _core.AllocatorConfig.parse(conf, version)
    except _core.ConfigError as error:
        raise InputError(f"{which} configuration: {error}") from None
    return conf


def _replay_device(
    trace: DeviceTrace, request: _Request, recorded_conf: str, progress: Progress | None
) -> ReplayResult:
    start = trace.start(recorded_conf, request.version)
    evidence = _evidence(trace, start, recorded_conf, request.version)
    recorded = replace(request, allocator="native", conf=recorded_conf, limit=None)
    recorded = replace(recorded, gpu_memory=None, shared_memory=None, plan=None)
    recorded_source = "recorded"
    if evidence.range is not None:
        most, recorded_source = _recorded_limit(trace, start, recorded, evidence.range)
        recorded = replace(recorded, limit=most)
    elif not _spilled(trace, start):
        recorded = replace(recorded, limit=_harmless_limit(trace, start, request.recorded_limits))
    comparable = bool(start) or evidence.has_segments
    limit, limit_source = request.limit, "given"
    if limit is None and request.gpu_memory is None:
        limit, limit_source = recorded.limit, recorded_source
        room = None if request.card is None else request.card.usable_bytes
        is_harmless = evidence.range is None  # a limit that refused nothing may exceed the card
        if is_harmless and not _same_policy(request, recorded) and not _spilled(trace, start):
            limit = min((one for one in (limit, room) if one is not None), default=None)
        if limit is not None and limit == room:
            limit_source = "card"
    request = replace(request, limit=limit)

    run = None
    matches: bool | None = None
    if comparable and _same_policy(request, recorded):
        run = _run(trace, start, request, compare=True, progress=progress)
        matches = run.first_difference is None
        if not matches and (limit_source == "given" or request.gpu_memory is not None):
            run, matches = None, None  # the caller's limit may be the reason for the difference
    if run is None:
        emptied = _emptied_caches(trace, start, recorded)
        run = _run(trace, start, request, emptied=emptied, progress=progress)
        paces = _at_other_paces(trace, start, request, emptied) if run.had_pending_frees else []
    else:
        paces = []
    return _result(trace, request, limit_source, run, matches, paces, reconstructed=bool(start))


def _same_policy(request: _Request, recorded: _Request) -> bool:
    def settings(conf: str) -> list[str]:
        return sorted(conf.replace(" ", "").split(","))

    allocators = {request.allocator, recorded.recorded_allocator}
    return allocators == {"native"} and settings(request.conf) == settings(recorded.conf)


def _spilled(trace: DeviceTrace, start: list[_core.SegmentInfo]) -> bool:
    """Returns whether the recorded program used shared memory."""
    return any(segment.shared for segment in start) or any(
        bool(batch.shared.any()) for batch in trace.batches()
    )


def _evidence(
    trace: DeviceTrace, start: list[_core.SegmentInfo], conf: str, version: str
) -> _core.LimitEvidence:
    evidence = _core.LimitEvidence(conf, version, sum(segment.total_size for segment in start))
    for batch in trace.batches():
        evidence.feed(batch.to_core())
    return evidence


def _recorded_limit(
    trace: DeviceTrace,
    start: list[_core.SegmentInfo],
    recorded: _Request,
    bounds: tuple[int, int],
) -> tuple[int, str]:
    """Returns the limit that refused requests, with `least <= limit < below`, and its origin.

    The origin is "recorded" for a limit that the recording names, else "inferred". The limits that
    the recording names and the recorded card's memory are tried before any other limit. If the
    recorded allocator is not PyTorch's, nothing is replayed, and the result is the first of these
    that lies within the bounds, or else the middle of the bounds.
    """
    least, below = bounds
    told = limit_within(recorded.recorded_limits, least, below)
    room = None if recorded.card is None else recorded.card.usable_bytes
    known = [(told, "recorded"), (room, "inferred")]
    likely = [(one, of) for one, of in known if one is not None and least <= one < below]
    if recorded.recorded_allocator != "native":
        return (*likely, ((least + below) // 2, "inferred"))[0]
    for limit, source in likely:
        run = _run(trace, start, replace(recorded, limit=limit), compare=True)
        if run.first_difference is None:
            return limit, source
    return _inferred_limit(trace, start, recorded, bounds), "inferred"


def _harmless_limit(
    trace: DeviceTrace, start: list[_core.SegmentInfo], limits: Sequence[int | None]
) -> int | None:
    """Returns the last recorded limit of a program that no limit refused anything.

    Returns None without such a limit, or if the program reserved more before it set the limit.
    """
    limit = limits[-1] if limits else None
    if limit is None:
        return None
    reserved = sum(segment.total_size for segment in start)
    most = reserved
    for batch in trace.batches():
        action, size = batch.action, batch.size.astype(np.int64)
        grown = np.isin(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        given = np.isin(action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        after = reserved + np.cumsum(np.where(grown, size, np.where(given, -size, 0)))
        if len(after):
            most, reserved = max(most, int(after.max())), int(after[-1])
    return limit if most <= limit else None


def _inferred_limit(
    trace: DeviceTrace,
    start: list[_core.SegmentInfo],
    recorded: _Request,
    bounds: tuple[int, int],
) -> int:
    """Finds a limit with `least <= limit < below` under which the replay matches the recording.

    This is a binary search: a replay's first difference shows whether its limit was too high or too
    low. If no limit gives a match, the difference has another cause, and the middle of the bounds
    is returned.
    """
    least, below = bounds
    middle = (least + below) // 2
    while least < below:
        limit = (least + below) // 2
        run = _run(trace, start, replace(recorded, limit=limit), compare=True)
        difference = run.first_difference
        if difference is None:
            return limit
        _, wanted, got = difference
        if wanted is not None and wanted[0] in _RELEASES:
            below = limit
        elif got is not None and got[0] in _RELEASES:
            least = limit + 1
        else:
            break
    return middle


def _run(
    trace: DeviceTrace,
    start: list[_core.SegmentInfo],
    request: _Request,
    *,
    compare: bool = False,
    completion: _core.Completion = _core.Completion.recorded,
    emptied: list[int] | None = None,
    progress: Progress | None = None,
) -> _core.Replay:
    run = _core.Replay(
        request.allocator,
        request.conf,
        request.version,
        request.limit,
        request.gpu_memory or AMPLE_MEMORY,
        request.shared_memory,
        compare,
        completion,
        emptied,
        trace.device,
        _core.RecordedAllocator[request.recorded_allocator],
    )
    if request.plan is not None:
        run.set_plan(request.plan)
    if start:
        run.restore(start)
    for batch in trace.batches():
        run.feed(batch.to_core())
        if progress is not None:
            progress(run.events, trace.event_count)
        if run.stopped:
            break
    run.finish()
    return run


def _emptied_caches(
    trace: DeviceTrace, start: list[_core.SegmentInfo], recorded: _Request
) -> list[int]:
    """Finds the events before which the program, not the allocator, emptied the cache."""
    return _run(trace, start, recorded, compare=True).emptied


def _at_other_paces(
    trace: DeviceTrace, start: list[_core.SegmentInfo], request: _Request, emptied: list[int]
) -> list[_core.Replay]:
    """Replays twice, with other timings of the frees that wait for another stream.

    In the first replay each such free completes immediately, in the second as late as possible.
    """
    return [
        _run(trace, start, request, completion=_core.Completion.at_once, emptied=emptied),
        _run(trace, start, request, completion=_core.Completion.late, emptied=emptied),
    ]


def _bounds(runs: list[_core.Replay]) -> tuple[int, int] | None:
    """Returns the lowest and the highest peak of reserved memory; None if a run ended early."""
    if any(one.stopped for one in runs):
        return None
    peaks = [one.peak[1] for one in runs]
    return min(peaks), max(peaks)


def _fits_at_any_pace(run: _core.Replay, paces: list[_core.Replay]) -> bool | None:
    if any(one.stopped for one in [run, *paces]):
        return False
    return True if paces or not run.had_pending_frees else None


def _result(
    trace: DeviceTrace,
    request: _Request,
    limit_source: str,
    run: _core.Replay,
    matches: bool | None,
    paces: list[_core.Replay],
    *,
    reconstructed: bool,
) -> ReplayResult:
    stats = run.statistics()
    peak_allocated = stats["allocated_bytes.all.peak"]
    peak_reserved = stats["reserved_bytes.all.peak"]
    event, reserved, active, allocated, requested, split = run.peak
    difference = run.first_difference if matches is False else None
    return ReplayResult(
        file=request.name,
        device=trace.device,
        gpu=request.card.name if request.card else None,
        allocator=request.allocator,
        conf=request.conf if request.allocator == "native" else "",
        version=request.version,
        limit_bytes=request.limit,
        limit_source=limit_source if request.limit is not None else None,
        gpu_memory_bytes=request.gpu_memory,
        shared_memory_bytes=request.shared_memory,
        peak_allocated_bytes=peak_allocated,
        peak_active_bytes=stats["active_bytes.all.peak"],
        peak_reserved_bytes=peak_reserved,
        peak_reserved_range_bytes=_bounds([run, *paces]) if paces else None,
        utilization=peak_allocated / peak_reserved if peak_reserved else None,
        num_alloc_retries=stats["num_alloc_retries"],
        num_ooms=stats["num_ooms"] + stats.get("num_oom_rejections", 0),
        fits=not run.stopped,
        fits_at_any_pace=_fits_at_any_pace(run, paces),
        first_oom_event=run.first_oom,
        first_oom=_first_oom(trace, run),
        avoided_ooms=run.avoided_ooms,
        events=run.events,
        engine_seconds=run.engine_seconds,
        driver_seconds=run.driver_seconds,
        matches_recording=matches,
        first_difference=difference and Difference(*difference),
        reconstructed_start=reconstructed,
        emptied_caches=tuple(run.emptied),
        conf_without_effect=_without_effect(request),
        peak=PeakBreakdown(
            event=event,
            reserved_bytes=reserved,
            requested_bytes=requested,
            rounding_bytes=active - requested,
            split_bytes=split,
            cached_bytes=reserved - active - split,
            pending_free_bytes=active - allocated,
        ),
        shared=None
        if request.shared_memory is None
        else SharedUse.measure(
            stats,
            total_bytes=request.shared_memory,
            peak_dedicated_bytes=run.peak_dedicated,
            by_driver=request.allocator != "elastic",
        ),
        plan=None if request.plan is None else PlanUse.of_streams(run.plan_use),
        memory_stats=stats,
    )


def _without_effect(request: _Request) -> tuple[tuple[str, str], ...]:
    return tuple(_core.AllocatorConfig.parse(request.conf, request.version).without_effect)


def _first_oom(trace: DeviceTrace, run: _core.Replay) -> FirstOom | None:
    if run.first_oom is None or run.first_oom_report is None:
        return None
    return FirstOom(run.first_oom, *run.first_oom_report, _program_line(trace, run.first_oom))


def _stack(trace: DeviceTrace, event: int) -> int:
    for batch in trace.batches():
        if event < len(batch):
            return int(batch.stack[event])
        event -= len(batch)
    return 0


def _program_line(trace: DeviceTrace, event: int) -> str | None:
    line = source_line(trace.frames(_stack(trace, event)))
    return None if line == NO_LINE else line
