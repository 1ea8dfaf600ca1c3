"""The explanation of a recording: what each part needs, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.analysis import find_categories, find_lifetimes, find_steps, source_line, source_lines
from plimsoll.errors import InputError
from plimsoll.explain.advice import Search, give_advice
from plimsoll.explain.fragmentation import find_fragmentation
from plimsoll.explain.leaks import find_leaks
from plimsoll.explain.oom import MOST_EXPLAINED, explain_failure, failures
from plimsoll.explain.peak import find_peak, step_of
from plimsoll.explain.program import try_changes
from plimsoll.explain.result import (
    Advice,
    CardUse,
    Explanation,
    OutOfMemory,
    ReservedUse,
    StepsFound,
)
from plimsoll.explain.source import has_history, read_source
from plimsoll.explain.state import Past
from plimsoll.gpus import gpu_profile
from plimsoll.replay import replay
from plimsoll.trace import Recording
from plimsoll.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from plimsoll.analysis import Lifetimes, Steps
    from plimsoll.replay import ReplayResult
    from plimsoll.trace import DeviceTrace


def explain(
    source: str | PathLike[str] | Recording | int,
    *,
    device: int | None = None,
    gpu: str | None = None,
    limit: int | str | None = None,
    version: str | None = None,
    advice: bool = True,
    seconds: float = 60.0,
    script: str | None = None,
    arguments: Sequence[str] = (),
    vary: str | None = None,
) -> Explanation:
    """Say why a program's GPU memory was used as it was, and what would help.

    Args:
        source: A snapshot, a trace, a recording that was read, or the number of a running process
            that plimsoll is installed in.
        device: Which device; by default the one with the most memory in use.
        gpu: The card it ran on, such as "H100": its memory and its context are then counted in.
        limit: The most that the program could reserve, if it had a limit; by default what the
            recording shows of it.
        version: Of PyTorch, whose rules are followed; by default the newest.
        advice: Whether to search for what helps.
        seconds: The most time that the search takes.
        script: The program that was recorded, if it is to be run again where there is no GPU, with
            checkpoints, autocast and a smaller batch. That takes time of its own.
        arguments: Its arguments.
        vary: Which of them says how large a batch is, such as "--batch-size".

    Raises:
        InputError: If the source, the device, the card, a size or the script cannot be used.
        ScriptError: If the script ends with an error.
    """
    recording = read_source(source)
    trace = _choose(recording, device)
    recording = Recording(recording.name, [trace], recording.settings, recording.marks)
    profile = gpu_profile(gpu) if gpu else None
    limit_bytes = None if limit is None else parse_size(limit)
    (base,) = replay(recording, limit=limit_bytes, version=version)
    past = Past(trace, trace.start(recording.conf, base.version), base)
    notes = _notes(base)
    if not has_history(recording):
        advice = False
        notes = ["there is no history, so that this is what there is now: a history says more, and "
                 "keeping one takes torch.cuda.memory._record_memory_history()"]  # fmt: skip

    lifetimes = find_lifetimes(trace)
    steps = find_steps(lifetimes, recording.marks, device=trace.device)
    categories = find_categories(lifetimes, steps, trace.frames)
    has_stacks = bool(lifetimes.stack.any())
    group, names = _groups(trace, lifetimes, has_stacks=has_stacks)
    config = past.config
    peak = find_peak(
        trace, lifetimes, steps, categories, group if has_stacks else None, names,
        config.round_request, base.peak_allocated_bytes,
    )  # fmt: skip
    reserved = _reserved(base, steps)

    failed = failures(past)
    if len(failed) > MOST_EXPLAINED:
        notes.append(f"{len(failed)} requests failed; the last {MOST_EXPLAINED} are explained")
    out_of_memory = [
        explain_failure(past, event, limit_bytes, lambda stack: source_line(trace.frames(stack)))
        for event in failed[-MOST_EXPLAINED:]
    ]
    moment = failed[-1] - 1 if failed else reserved.event
    fragmentation = find_fragmentation(past, moment, _Owners(lifetimes, moment, group, names))
    search = Search(
        recording, version=version, limit=limit_bytes or _room(out_of_memory), seconds=seconds
    )
    found: list[Advice] = []
    if advice:
        total = profile.total_bytes if profile else None
        found = give_advice(
            search, recording, base, lifetimes, steps, categories, total_bytes=total
        )
    tried = len(search.trials)
    if script is not None:
        changes, said, runs = try_changes(
            script, arguments, gpu=gpu or "H100", conf=recording.conf, vary=vary
        )
        found = sorted([*found, *changes], key=lambda one: -one.saves_bytes)
        notes += said
        tried += runs
    return Explanation(
        file=recording.name,
        device=trace.device,
        events=trace.event_count,
        conf=recording.conf,
        card=_card(profile.name if profile else None, reserved.reserved_bytes, out_of_memory),
        reserved=reserved,
        peak=peak,
        fragmentation=fragmentation,
        num_alloc_retries=base.num_alloc_retries,
        steps=StepsFound(len(steps), steps.source, steps.confidence),
        leaks=find_leaks(lifetimes, steps, group, names),
        out_of_memory=out_of_memory,
        advice=found,
        tried=tried,
        out_of_time=search.out_of_time,
        notes=notes,
    )


def _choose(recording: Recording, device: int | None) -> DeviceTrace:
    if device is not None:
        for trace in recording.devices:
            if trace.device == device:
                return trace
        known = ", ".join(str(trace.device) for trace in recording.devices)
        raise InputError(f"{recording.name}: nothing of device {device}; there is {known}")
    if len(recording.devices) == 1:
        return recording.devices[0]
    return max(
        recording.devices, key=lambda trace: int(find_lifetimes(trace).level().max(initial=0))
    )


def _notes(base: ReplayResult) -> list[str]:
    notes = []
    if base.matches_recording is False:
        notes.append(
            "the replay differs from the recording: the parts of reserved memory, fragmentation "
            "and advice follow PyTorch's rules, not what happened"
        )
    if base.matches_recording is None:
        notes.append(
            "the recording has no segments to compare with: reserved memory follows PyTorch's rules"
        )
    if base.reconstructed_start:
        notes.append("the recording starts late; what was live before is taken from its end")
    if not base.fits:
        notes.append(f"under the given limit the program ends at event {base.first_oom_event}")
    return notes


def _groups(
    trace: DeviceTrace, lifetimes: Lifetimes, *, has_stacks: bool
) -> tuple[NDArray[np.int64], list[str]]:
    """What each block is counted with: its source line, or without stacks its size."""
    if has_stacks:
        return source_lines(lifetimes.stack, trace.frames)
    sizes, place = np.unique(lifetimes.size, return_inverse=True)
    return place, [f"blocks of {format_size(int(size))}" for size in sizes]


class _Owners:
    """Names the live blocks of one moment by address."""

    def __init__(
        self, lifetimes: Lifetimes, event: int, group: NDArray[np.int64], names: list[str]
    ) -> None:
        held = np.flatnonzero((lifetimes.start <= event) & (lifetimes.completed > event))
        addresses = lifetimes.address[held].tolist()
        self._names: dict[int, str] = {
            address: names[one] for address, one in zip(addresses, group[held], strict=True)
        }

    def __call__(self, address: int, size: int) -> str:
        return self._names.get(address, f"blocks of {format_size(size)}")


def _reserved(base: ReplayResult, steps: Steps) -> ReservedUse:
    peak = base.peak
    return ReservedUse(
        event=peak.event,
        step=step_of(steps, peak.event),
        reserved_bytes=peak.reserved_bytes,
        allocated_bytes=peak.requested_bytes + peak.rounding_bytes - peak.pending_free_bytes,
        rounding_bytes=peak.rounding_bytes,
        pending_bytes=peak.pending_free_bytes,
        cached_bytes=peak.cached_bytes,
        fragments_bytes=peak.split_bytes,
        exact=base.matches_recording is True,
    )


def _room(out_of_memory: list[OutOfMemory]) -> int | None:
    """What the program surely had room for, where a request found no more."""
    if not out_of_memory:
        return None
    last = out_of_memory[-1]
    if last.cause == "card":
        return last.reserved_bytes + last.device_free_bytes
    return last.limit_range_bytes[0] if last.limit_range_bytes else None


def _card(gpu: str | None, reserved: int, out_of_memory: list[OutOfMemory]) -> CardUse:
    if gpu is None:
        return CardUse(None, None, None, None, reserved, None, None)
    profile = gpu_profile(gpu)
    context = profile.context_bytes
    other = None
    if out_of_memory:
        last = out_of_memory[-1]
        used = profile.total_bytes - last.device_free_bytes
        other = max(0, used - context - last.reserved_bytes)
    shown = None if other is None else context + reserved + other
    source = profile.sources["context_bytes"]
    return CardUse(profile.name, profile.total_bytes, context, source, reserved, other, shown)
