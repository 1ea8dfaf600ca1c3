"""Makes the report that a process with simulated GPUs sends to its parent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.torch_environment import WITHOUT_CACHE
from plimsoll.engine.gpus.profiles import gpu_profiles
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.assumed import (
    EXTRAPOLATED_NCCL,
    READS,
    SIZES_BY_DATA,
    WATCHER_FAILED,
    Assumed,
)
from plimsoll.prediction.child.allocator_needs import allocator_needs, of_all
from plimsoll.prediction.child.compiled_report import compiled_use
from plimsoll.prediction.child.found_causes import causes_of
from plimsoll.prediction.child.guests import note_other_cards
from plimsoll.prediction.child.own_limits import tightest_limit
from plimsoll.prediction.child.peak_contents import PeakContents, Run, find_peak
from plimsoll.prediction.child.printing import is_of_printing
from plimsoll.prediction.child.program_notes import notes_of
from plimsoll.prediction.child.recorded_run import recorded_run
from plimsoll.prediction.child.script_ending import ScriptEnding, line_of_stack, reason_of
from plimsoll.prediction.child.uncertain_peaks import UncertainPeaks, uncertain_peaks
from plimsoll.prediction.parts import CardVerdict, GpuUse, PredictionParts, Stopped
from plimsoll.recordings.analysis.lines import source_line
from plimsoll.torch.building import versions
from plimsoll.torch.simulated.library import BEYOND_BUDGET, MATH_ATTENTION
from plimsoll.torch.simulated.memory_limits import heeded, without_limit
from plimsoll.torch.simulated.simulated_driver import COPIES_LACK_VALUES

if TYPE_CHECKING:
    from collections.abc import Collection

    from plimsoll.engine.gpus.profiles import GpuProfile
    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.prediction.allocator_need import AllocatorNeed
    from plimsoll.prediction.child.high_water import HighWaterMark, HighWaterMarks
    from plimsoll.prediction.child.labels import BlockLabels
    from plimsoll.prediction.child.own_limits import TightestLimit
    from plimsoll.prediction.child.peak_contents import PeakContents
    from plimsoll.prediction.child.stops import Stop
    from plimsoll.prediction.request import Request
    from plimsoll.recordings.causes.cause import Cause
    from plimsoll.recordings.recording import Recording
    from plimsoll.torch.simulated.simulation import Simulation


def make_report(
    simulation: Simulation,
    labels: BlockLabels,
    high_water: HighWaterMarks,
    request: Request,
    error: BaseException | None,
    stop: Stop | None,
    seconds: float,
) -> dict[str, Any]:
    """Returns the report: a `PredictionParts` as a dictionary, and how the script ended.

    The report has these keys:

    - "prediction": the figures of the GPU with the least headroom.
    - "device": the number of that GPU.
    - "context_bytes": the memory of CUDA's context on that GPU.
    - "error": None, "out_of_memory" or "other".
    - "device_failure" and "reason": a description of the error "other", see `ScriptError`.
    - "unknown_read": the line that first read a value that was not computed, or None.
    - "missed_network": whether the script ended because it is offline.
    - "missing": the `HubRepository` that the script failed to get, as a dictionary, or None.
    - "on_other_cards": a rank's use of cards other than its own, each an `OnOtherCard`.
    """
    ending = ScriptEnding.of(simulation, error, is_stopped=stop is not None)
    labels.finish()
    used = [
        _used_gpu(simulation, labels, high_water, device)
        for device in sorted(simulation.contexts) or [0]
    ]
    if request.finds_need and _fits(simulation, ending) and not why_no_replays(simulation):
        used = [gpu.with_needs(simulation) for gpu in used]
    fullest = min(used, key=lambda gpu: gpu.headroom_bytes)
    prediction = _prediction(simulation, labels, request, used, fullest, ending, stop, seconds)
    return {
        "prediction": prediction.to_dict(),
        "device": fullest.device,
        "context_bytes": fullest.context_bytes or _least_context(simulation, fullest.device),
        "error": ending.kind,
        "unknown_read": _first_unknown_read(prediction.assumptions),
        "missed_network": ending.missed_network,
        "missing": None if ending.missing is None else asdict(ending.missing),
        "device_failure": ending.device_failure if ending.has_failed else None,
        "reason": reason_of(error) if ending.has_failed else None,
        "on_other_cards": _on_other_cards(simulation, labels),
    }


def _most_context(simulation: Simulation, gpu: _UsedGpu) -> int | None:
    """Returns the most that the context may take; None if its size is not an estimate."""
    if simulation.setup.dedicated_bytes is not None:
        return None  # the program gets these bytes, whatever its context takes
    return simulation.profiles[gpu.device].most_context_bytes(gpu.context_bytes)


def _least_context(simulation: Simulation, device: int) -> int:
    """Returns the least memory of CUDA's context in a process that has launched a kernel."""
    return simulation.profiles[device].context_with(["kernels"])


def _prediction(
    simulation: Simulation,
    labels: BlockLabels,
    request: Request,
    used: list[_UsedGpu],
    fullest: _UsedGpu,
    ending: ScriptEnding,
    stop: Stop | None,
    seconds: float,
) -> PredictionParts:
    device, run, shared = fullest.device, fullest.run, fullest.peak.shared
    profile, setup = simulation.profiles[device], request.setup
    peak = find_peak(run, cache(lambda site: source_line(run.frames(site))))
    fits = _fits(simulation, ending)
    step = labels.step_clock.step(device, line_of_stack) if fits else None
    no_others = _why_no_other_cards(simulation) if fits else None
    says_others = fits and not request.finds_least and no_others is None
    uncertain = _uncertain_peaks(simulation, fullest) if fits else UncertainPeaks()
    return PredictionParts(
        script=request.title,
        gpu=profile.name,
        driver=setup.driver,
        allocator=simulation.allocator,
        policy=setup.policy or "strict",
        conf=simulation.allocators[device].conf,
        torch=".".join(map(str, simulation.version)),
        total_bytes=profile.total_bytes,
        used_bytes=setup.used_bytes,
        context_bytes=fullest.context_bytes,
        context_most_bytes=_most_context(simulation, fullest),
        peak_allocated_bytes=fullest.peak.allocated_bytes,
        peak_reserved_bytes=fullest.peak.reserved_bytes,
        device_used_bytes=fullest.card_bytes,
        nccl_bytes=fullest.nccl_bytes,
        nccl_range_bytes=simulation.nccl_range_bytes(device),
        shared_used_bytes=shared.peak_bytes if shared else 0,
        shared=shared,
        shared_by_category=peak.shared_by_category,
        shared_lines=peak.shared_lines,
        fits=fits,
        headroom_bytes=fullest.headroom_bytes,
        needs=of_all([gpu.needs for gpu in used]),
        peak_allocated_range_bytes=uncertain.allocated,
        peak_reserved_range_bytes=uncertain.reserved,
        may_fail_with_bytes=uncertain.fails_with,
        out_of_memory=ending.out_of_memory,
        stopped=None if stop is None or ending.has_ended else _stopped(stop, peak, run),
        num_ooms=sum(map(_failures, simulation.allocators)),
        by_category=_with_rounding(peak.by_category, fullest.peak.allocated_bytes),
        top_lines=peak.top_lines,
        step_peaks_bytes=peak.step_peaks_bytes,
        step_seconds=None if step is None else step.seconds,
        step_seconds_range=None if step is None else step.seconds_range,
        step=step,
        other_cards=_other_cards(simulation, used) if says_others else [],
        devices=[gpu.use() for gpu in used if gpu.device in simulation.contexts],
        **_noted(simulation, labels, used, fullest, peak, depends_on=uncertain.depends_on),
        written=[],  # the parent adds the written files once this process has ended
        uses_cuda=simulation.has_contexts,
        events=len(run.action),
        seconds=seconds,
        compiled=compiled_use(simulation, device, peak.level),
        timeline=peak.timeline,
        limit_bytes=None if fullest.limit is None else fullest.limit.limit_bytes,
        no_other_cards=no_others,
    )


def _stopped(stop: Stop, peak: PeakContents, run: Run) -> Stopped:
    return Stopped(stop.why, stop.line, peak.event, len(run.action))


def _fits(simulation: Simulation, ending: ScriptEnding) -> bool:
    """Returns whether the script got all the memory that it requested.

    Returns False if a serving engine in the script ran out of memory or refused to start, even if
    the script itself ended without an error.
    """
    engine = simulation.serving
    lacked = engine is not None and (engine.failed_in or engine.refusal) is not None
    return ending.out_of_memory is None and not lacked


def _causes(
    simulation: Simulation, used: list[_UsedGpu], gpu: _UsedGpu, peak: PeakContents
) -> list[Cause]:
    def find() -> list[Cause]:
        devices = {each.device: each.peak.allocated_bytes for each in used}
        notes = notes_of(simulation, devices)
        return causes_of(
            gpu.run, peak, gpu.device, notes, simulation.watchers, room_bytes=gpu.room_bytes
        )

    return simulation.watchers.guarded("the causes of its memory", find)() or []


def _on_other_cards(simulation: Simulation, labels: BlockLabels) -> list[dict[str, Any]]:
    guarded = simulation.watchers.guarded
    note = guarded("its memory on other ranks' cards", note_other_cards)
    return note(simulation, lambda device: run_of(simulation, labels, device)) or []


def _uncertain_peaks(simulation: Simulation, gpu: _UsedGpu) -> UncertainPeaks:
    return uncertain_peaks(simulation, gpu.device, gpu.peak, gpu.room_bytes)


def _with_rounding(by_category: dict[str, int], allocated_bytes: int) -> dict[str, int]:
    """Returns `by_category` with "rounding" raised, so that the sum is `allocated_bytes`."""
    rest = allocated_bytes - sum(by_category.values())
    return by_category | {"rounding": by_category["rounding"] + rest}


def _first_unknown_read(assumptions: list[Assumed]) -> str | None:
    """Returns the line that was the first to read a value that was not computed.

    `assumptions` are in the order in which the simulation made them.
    """
    reads = (assumed for assumed in assumptions if assumed.what in READS)
    return next((read.line or "on a line that is not known" for read in reads), None)


def run_of(simulation: Simulation, labels: BlockLabels, device: int) -> Run:
    """Returns the events of a device, with their call stacks, labels and steps."""
    engine = simulation.allocators[device].engine
    action, address, size, stream, _, context, shared = engine.history_columns()
    config = simulation.allocators[device].config
    return Run(
        action=action,
        address=address,
        size=size,
        shared=shared,
        stream=stream,
        site=context,
        frames=simulation.site_stacks().__getitem__,
        labels=labels.by_device[device],
        round_request=config.round_request,
        steps=labels.ends_of_steps(device),
    )


def _noted(
    simulation: Simulation,
    labels: BlockLabels,
    used: list[_UsedGpu],
    gpu: _UsedGpu,
    peak: PeakContents,
    *,
    depends_on: Collection[str],
) -> dict[str, Any]:
    """Returns the fields of the prediction that come from notes taken while the program ran."""
    return {
        "causes": _causes(simulation, used, gpu, peak),
        "plan": simulation.plan_use(gpu.device),
        "serving": simulation.serving,
        "assumptions": _assumptions(simulation, depends_on=depends_on),
        "convolutions": simulation.library.convolutions(),
        "fewer_steps": labels.step_limit.kept,
    }


def _allocator_used() -> str:
    """Returns the text of the assumption that PyTorch's own allocator served the requests."""
    own = "PyTorch's own allocator, in its libc10_cuda, served the requests"
    if versions.is_known():
        return own
    return (
        f"{own}, as plimsoll does not know the rules of this version; figures for other cards and "
        f"settings follow the rules of {versions.rules_version()}"
    )


def _assumptions(simulation: Simulation, *, depends_on: Collection[str]) -> list[Assumed]:
    merged: dict[tuple[str, str], list[Any]] = {}
    for assumption in simulation.library.assumptions():
        what = simulation.library.name(assumption.what)
        # The library also lists uses of math attention. They are not assumptions: `program_notes`
        # reads them to explain the memory use.
        if what.startswith(MATH_ATTENTION):
            continue
        if what in SIZES_BY_DATA and is_of_printing(assumption.stack):
            continue  # these sizes are a few hundred bytes at most, and only a text comes of them
        operation = simulation.library.name(assumption.operation)
        entry = merged.setdefault((what, operation), [None, 0, 0])
        if entry[0] is None and assumption.stack:
            entry[0] = line_of_stack(assumption.stack)
        entry[1] += assumption.count
        entry[2] = max(entry[2], assumption.bytes)
    if simulation.has_own_allocator:
        merged[_allocator_used(), "PyTorch"] = [None, 1, 0]
    if simulation.is_caching_forbidden:
        merged[WITHOUT_CACHE, "PyTorch"] = [None, 1, 0]
    if simulation.communicators.is_extrapolated:
        merged[EXTRAPOLATED_NCCL, "NCCL"] = [None, 1, 0]
    whose = "NCCL" if simulation.communicators.most else "record_stream"
    for what in depends_on:
        merged[what, whose] = [None, 1, 0]
    if _core.copied_by_cuda():
        merged[COPIES_LACK_VALUES, "cudaMemcpy"] = [None, 1, 0]
    for watcher, error in simulation.watchers.failures.items():
        merged[WATCHER_FAILED, f"{watcher} ({error})"] = [None, 1, 0]
    # The assumption that values were not computed matters only if the host read such a value, or a
    # size depended on one.
    matters = any(what in READS or what in SIZES_BY_DATA for what, _ in merged)
    return [
        Assumed(what, operation, line, count, size or None)
        for (what, operation), (line, count, size) in merged.items()
        if matters or what != BEYOND_BUDGET
    ]


def _failures(allocator: Allocator) -> int:
    """Returns the number of failed requests, the sum of PyTorch's two counters of them."""
    stats = allocator.memory_stats()
    return stats["num_ooms"] + stats.get("num_oom_rejections", 0)


def _why_no_other_cards(simulation: Simulation) -> str | None:
    """Returns why this run cannot predict other cards; None if it can."""
    if simulation.size_read_at is not None:
        return f"the program reads how much memory its card has ({simulation.size_read_at})"
    if _core.size_read_by_cuda():
        return "a library of the program reads how much memory its card has"
    return why_no_replays(simulation)


def why_no_replays(simulation: Simulation) -> str | None:
    """Returns why replays of the run's requests do not show its need; None if they do."""
    if any(map(simulation.driver_memory.most_bytes, simulation.contexts)):
        return "memory was taken of CUDA's driver itself, outside PyTorch's allocator"
    if any(map(_failures, simulation.allocators)):
        return "requests failed on this card, and the program went on"
    if any(len({each.fraction for each in heeded(limits)}) > 1 for limits in simulation.limits):
        return "the program sets several limits to its memory"
    return None


@dataclass(frozen=True)
class _UsedGpu:
    """The memory that this process used on one GPU.

    Attributes:
        device: The GPU.
        run: The GPU's events.
        limit: The tightest limit that the program set for itself on the GPU; None if it set none.
        peak: PyTorch's peak on the GPU.
        context_bytes: The memory that CUDA's context took on the GPU.
        nccl_bytes: The memory that NCCL took on the GPU.
        card_bytes: The most that nvidia-smi would show of the process.
        headroom_bytes: The memory that stays free, as in `PredictionParts`.
        room_bytes: The most that PyTorch's allocator could reserve on the GPU.
        needs: The GPU memory that the run needs with each allocator; empty if unknown.
    """

    device: int
    run: Run
    limit: TightestLimit | None
    peak: HighWaterMark
    context_bytes: int
    nccl_bytes: int
    card_bytes: int
    headroom_bytes: int
    room_bytes: int
    needs: list[AllocatorNeed] = field(default_factory=list)

    def with_needs(self, simulation: Simulation) -> _UsedGpu:
        """Returns the object with `needs`, and with the headroom that follows from them."""
        outside = self.context_bytes + self.nccl_bytes
        needs = allocator_needs(simulation, self.device, self.room_bytes, outside)
        if not needs:
            return self
        headroom = self.room_bytes + outside - needs[0].card_bytes
        return replace(self, needs=needs, headroom_bytes=headroom)

    def use(self) -> GpuUse:
        """Returns the `GpuUse` of this GPU for a prediction."""
        return GpuUse(
            device=self.device,
            peak_allocated_bytes=self.peak.allocated_bytes,
            peak_reserved_bytes=self.peak.reserved_bytes,
            card_bytes=self.card_bytes,
            headroom_bytes=self.headroom_bytes,
        )


def _used_gpu(
    simulation: Simulation, labels: BlockLabels, high_water: HighWaterMarks, device: int
) -> _UsedGpu:
    profile, peak = simulation.profiles[device], high_water.of(device)
    run = run_of(simulation, labels, device)
    limit = tightest_limit(simulation.limits[device], run, profile.total_bytes)
    context = simulation.context_bytes(device)
    nccl = simulation.nccl_bytes(device)
    card = high_water.card_bytes(device)
    in_shared = peak.reserved_bytes - peak.dedicated_bytes
    headroom = profile.total_bytes - card - in_shared
    if peak.shared is not None:  # all GPUs spill into the same host memory
        others = [high_water.of(other).shared for other in simulation.contexts - {device}]
        beside = sum(other.peak_bytes for other in others if other is not None)
        headroom += max(peak.shared.total_bytes - beside, peak.shared.peak_bytes)
    if limit is not None:
        headroom = min(headroom, limit.left_bytes)
    room = headroom + peak.reserved_bytes
    return _UsedGpu(device, run, limit, peak, context, nccl, card, headroom, room)


def _other_cards(simulation: Simulation, used: list[_UsedGpu]) -> list[CardVerdict]:
    """Returns, for each kind of card that plimsoll knows, whether the run would fit on such cards.

    Leaves out cards whose attention kernels are of another kind than those of the simulated card,
    see `_has_fused_attention`.

    The run fits if the card has room for all reserved memory. With less room it may still fit, if
    the allocator releases cached memory in time. To find out, plimsoll replays the requests of each
    GPU with that card's memory.
    """
    recordings: dict[int, Recording] = {}

    def room_on(card: GpuProfile, gpu: _UsedGpu, *, with_most_context: bool = False) -> int:
        limit = simulation.limits[gpu.device][-1].bytes_of(card.total_bytes)
        context = simulation.context_on(card, gpu.device)
        if with_most_context:
            context = card.most_context_bytes(context) or context
        return min(card.total_bytes - context - gpu.nccl_bytes, limit)

    def may_lack_room(card: GpuProfile, gpu: _UsedGpu) -> bool:
        least = room_on(card, gpu, with_most_context=True)
        return least < min(room_on(card, gpu), gpu.peak.reserved_bytes)

    def fits(card: GpuProfile, gpu: _UsedGpu) -> bool:
        room = room_on(card, gpu)
        if gpu.peak.reserved_bytes <= room:
            return True
        if gpu.peak.allocated_bytes > room:
            return False
        if gpu.device not in recordings:
            recordings[gpu.device] = recorded_run(simulation, gpu.device)
        allocator = simulation.allocators[gpu.device]
        (result,) = replay(
            recordings[gpu.device],
            allocator=allocator.name,
            conf=without_limit(allocator.conf) if allocator.name == "native" else None,
            gpu_memory=room,
            version=allocator.version,
        )
        return result.fits

    return [
        CardVerdict(
            card.name,
            card.total_bytes,
            fits=(does_fit := all(fits(card, gpu) for gpu in used)),
            headroom_bytes=min(room_on(card, gpu) - gpu.peak.reserved_bytes for gpu in used),
            may_not_fit=does_fit and any(may_lack_room(card, gpu) for gpu in used),
        )
        for card in gpu_profiles()
        if _has_fused_attention(card) == _has_fused_attention(simulation.profiles[0])
    ]


def _has_fused_attention(card: GpuProfile) -> bool:
    """Returns whether a card runs flash attention.

    Older cards run other attention kernels, which allocate different amounts of memory.
    """
    return card.compute_capability >= (8, 0)
