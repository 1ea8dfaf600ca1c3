"""The explanation of a recording: what each part needs, and in which order."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.analysis import find_categories, find_lifetimes, find_steps, source_line, source_lines
from plimsoll.errors import InputError
from plimsoll.explanation.advice import give_advice
from plimsoll.explanation.explanation import Explanation
from plimsoll.explanation.fragmentation import find_fragmentation
from plimsoll.explanation.leaks import find_leaks
from plimsoll.explanation.oom import MOST_EXPLAINED, explain_failure
from plimsoll.explanation.parts import (
    Advice,
    CardUse,
    OutOfMemory,
    ReservedUse,
    ScriptRun,
    StepsFound,
)
from plimsoll.explanation.peak import find_peak, step_of
from plimsoll.explanation.ranking import ranked
from plimsoll.explanation.recorded_state import RecordedPast
from plimsoll.explanation.script_changes import try_changes
from plimsoll.explanation.search import Search, recorded_setting
from plimsoll.explanation.source import has_history, read_source
from plimsoll.explanation.state import ReplayedPast, recorded_failures
from plimsoll.gpus import named_card, recorded_card
from plimsoll.recordings import Recording
from plimsoll.replays import replay
from plimsoll.units import format_size, parse_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from plimsoll.analysis import Lifetimes, Steps
    from plimsoll.explanation.state import Past
    from plimsoll.gpus import RecordedCard
    from plimsoll.recordings import DeviceTrace
    from plimsoll.replays import ReplayResult


def explain(
    source: str | PathLike[str] | Recording | int,
    *,
    device: int | None = None,
    gpu: str | None = None,
    limit: int | str | None = None,
    version: str | None = None,
    advice: bool = True,
    search_events: int | None = None,
    script: str | None = None,
    arguments: Sequence[str] = (),
    vary: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Say why a program's GPU memory was used as it was, and what would help.

    >>> import plimsoll
    >>> found = plimsoll.explain("examples/recordings/gpt2_adamw.pickle.gz")  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP

    Args:
        source: A snapshot, a trace, a recording that was read, or the number of a running process
            that plimsoll is installed in.
        device: Which device; by default the one with the most memory in use.
        gpu: The card it ran on, such as "H100": its memory and its context are then counted in. By
            default the one that the recording names, if it names one.
        limit: The most that the program could reserve, if it had a limit; by default what the
            recording shows of it. Under one that is not the recording's own, what happened up to
            the request that then fails is had by replaying.
        version: Of PyTorch, whose rules are followed; by default the recorded one.
        advice: Whether to search for what helps.
        search_events: How many events the search may replay, by default 400 million, which is forty
            replays of ten million; 0 for no search. Where frees wait for other streams a replay
            counts three times. The same recording always gets the same advice.
        script: The program that was recorded, if it is to be run again where there is no GPU, up to
            eight times: as it is, and with changes of `fit`. That takes time of its own.
        arguments: Its arguments.
        vary: Which of them says how large a batch is, such as "--batch-size".
        progress: Called with what is being done, in words, now and then.

    Raises:
        InputError: If the source, the device, the card, a size, a number of events or the script
            cannot be used.
        ScriptError: If the script ends with an error.
    """
    if search_events is not None and search_events < 0:
        raise InputError(f"the search cannot replay {search_events} events; 0 leaves it out")
    tell = progress or (lambda _: None)
    recording = read_source(source)
    tell(f"looking at {recording.name}")
    trace = _choose(recording, device)
    problems = recording.problems
    recording = replace(recording, devices=[trace])
    card = named_card(gpu) if gpu else recorded_card(recording.settings, trace.device)
    limit_bytes = None if limit is None else parse_memory(limit)
    lifetimes = find_lifetimes(trace)
    is_known = has_history(recording)
    past, base, notes = _past(
        recording, lifetimes, limit=limit_bytes, version=version, is_known=is_known
    )
    if not is_known:
        of_pieces = notes if recording.allocator != "native" else []
        notes = [
            *of_pieces,
            "there is no history, so that this is what there is now: what was live at the peak, "
            "leaks and advice need one. `plimsoll run --record run.plim SCRIPT` records a program, "
            "torch.cuda.memory._record_memory_history() has PyTorch keep one from then on",
        ]
    steps = find_steps(lifetimes, recording.marks, device=trace.device)
    categories = find_categories(
        lifetimes, steps, trace.frames, recorded_failures(trace), recording.labels_of(trace.device)
    )
    has_stacks = bool(lifetimes.stack.any())
    group, names = _groups(trace, lifetimes, has_stacks=has_stacks)
    peak = find_peak(
        trace, lifetimes, steps, categories, group if has_stacks else None, names,
        past.round_request, _peak_allocated_bytes(past, recording, version),
    )  # fmt: skip
    reserved = _reserved(past, steps)

    failed = past.failures()
    if len(failed) > MOST_EXPLAINED:
        notes.append(f"{len(failed)} requests failed; the last {MOST_EXPLAINED} are explained")
    out_of_memory = [
        explain_failure(past, event, limit_bytes, lambda stack: source_line(trace.frames(stack)))
        for event in failed[-MOST_EXPLAINED:]
    ]
    moment = failed[-1] - 1 if failed else reserved.event
    owners = _Owners(lifetimes, moment, group, names, has_addresses=past.has_recorded_addresses)
    fragmentation = find_fragmentation(past, moment, owners)
    fits_limit = None
    if limit_bytes is not None:
        within = isinstance(past, ReplayedPast) or past.peak_dedicated_bytes <= limit_bytes
        fits_limit = within and not failed
    search = Search(
        recording,
        version=version,
        limit=limit_bytes or _room(out_of_memory),
        events=search_events,
        progress=progress,
    )
    leaks = find_leaks(lifetimes, steps, group, names)
    found: list[Advice] = []
    if advice and is_known and search_events != 0:
        found = give_advice(
            search,
            base,
            lifetimes,
            steps,
            categories,
            leaks=[(leak, group == names.index(leak.what)) for leak in leaks],
            failure=out_of_memory[-1] if out_of_memory else None,
            total_bytes=card.total_bytes if card else None,
        )
        if not search.trials and not search.ended_early:
            notes.append("there is no advice, as this recording cannot be replayed")
    script_run: ScriptRun | None = None
    if script is not None:
        tell(f"running {script} with changes, simulated")
        own = recorded_setting(recording)
        changes, script_run, said = try_changes(
            script,
            arguments,
            gpu=card.name if card is not None and card.profile is not None else "H100",
            conf=recording.conf,
            allocator="native" if own is None else own.allocator,
            vary=vary,
            recorded_bytes=peak.allocated_bytes,
            is_whole=not recorded_failures(trace),
        )
        found += changes
        notes += said
    return Explanation(
        file=recording.name,
        device=trace.device,
        events=trace.event_count,
        has_history=is_known,
        allocator=recording.allocator,
        conf=recording.conf,
        limit_bytes=limit_bytes,
        fits_limit=fits_limit,
        card=_card(card, past.peak_dedicated_bytes, [] if past.is_what_if else out_of_memory),
        reserved=reserved,
        peak=peak,
        fragmentation=fragmentation,
        num_alloc_retries=past.num_alloc_retries,
        steps=StepsFound(len(steps), steps.source, steps.confidence),
        leaks=leaks,
        out_of_memory=out_of_memory,
        served_requests=base.avoided_ooms if base is not None and past.is_what_if else 0,
        advice=ranked(found),
        tried=len(search.trials),
        search_ended_early=search.ended_early,
        script=script_run,
        notes=[*problems, *notes],
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


def _past(
    recording: Recording,
    lifetimes: Lifetimes,
    *,
    limit: int | None,
    version: str | None,
    is_known: bool,
) -> tuple[Past, ReplayResult | None, list[str]]:
    """What happened, or would under another limit; its replay; what has to be said of it."""
    (trace,) = recording.devices
    if recording.allocator != "native":
        said = None if has_history(recording) else recording.fragments_bytes(trace.device)
        recorded = RecordedPast(
            trace, lifetimes, recording.allocator, "", version or recording.version, said
        )
        notes = list(recorded.notes)
        is_less = limit is not None and limit < recorded.peak_dedicated_bytes
        if limit is not None and is_known and (is_less or recorded.failures()):
            try:
                under = _under(recording, limit, version)
            except InputError as error:
                notes.append(f"what the given limit comes to is not known: {error}")
            else:
                if is_less or under[1].avoided_ooms:
                    return under
        if not recorded.is_exact:
            notes.append(
                "what was reserved before the first event is in pieces of unknown size: cached and "
                "fragments take them for 2 MiB each"
            )
        return recorded, None, notes
    (base,) = replay(recording, limit=limit, version=version)
    notes = _notes(base, is_limited=limit is not None)
    if base.matches_recording is False and "allocator" not in recording.settings:
        notes.append(
            "nothing says which allocator was recorded, and it was taken for PyTorch's own; "
            "recordings of plimsoll and plimsoll.memory_snapshot() name it"
        )
    if base.matches_recording is False:
        past = RecordedPast(trace, lifetimes, "native", base.conf, base.version)
        return past, base, [*notes, *past.notes]
    start = trace.start(recording.conf, base.version)
    return ReplayedPast(trace, start, base, recording.allocator), base, notes


def _under(
    recording: Recording, limit: int, version: str | None
) -> tuple[Past, ReplayResult, list[str]]:
    """What another allocator than PyTorch's would have done under a limit.

    Raises:
        InputError: If it cannot be replayed.
    """
    (trace,) = recording.devices
    own = recorded_setting(recording)
    if own is None:
        raise InputError(f"there is no replay of the allocator {recording.allocator}")
    (base,) = replay(recording, allocator=own.allocator, limit=limit, version=version)
    start = trace.start(recording.conf, base.version)
    return (
        ReplayedPast(trace, start, base, recording.allocator),
        base,
        _notes(base, is_limited=True),
    )


def _peak_allocated_bytes(past: Past, recording: Recording, version: str | None) -> int:
    """The most in live blocks as recorded, as far as it is known beyond their rounding.

    A what-if past ends early or serves other requests, and its own peak is that of another run.
    """
    if not past.is_what_if:
        return past.peak_allocated_bytes
    if recording.allocator != "native":
        return 0
    (own,) = replay(recording, version=version)
    return 0 if own.matches_recording is False else own.peak_allocated_bytes


def _notes(base: ReplayResult, *, is_limited: bool) -> list[str]:
    notes = []
    if base.matches_recording is False:
        notes.append(
            "the replay differs from the recording: reserved memory and its parts are as recorded, "
            "where ends of blocks that are too small to split off count as fragments; advice "
            "follows PyTorch's rules, not what happened"
        )
    if base.matches_recording is None and is_limited:
        whose = "PyTorch's rules" if base.allocator == "native" else "the allocator's rules"
        notes.append(
            f"under the given limit reserved memory follows {whose}; what was live is as recorded"
        )
    elif base.matches_recording is None:
        notes.append(
            "the recording has no segments to compare with: reserved memory follows PyTorch's rules"
        )
    if base.reconstructed_start:
        notes.append("the recording starts late; what was live before is taken from its end")
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
    """Names the live blocks of one moment: by an address in them, or by a size that none shares."""

    def __init__(
        self,
        lifetimes: Lifetimes,
        event: int,
        group: NDArray[np.int64],
        names: list[str],
        *,
        has_addresses: bool,
    ) -> None:
        held = np.flatnonzero((lifetimes.start <= event) & (lifetimes.completed > event))
        held = held[np.argsort(lifetimes.address[held])]
        self._begins = lifetimes.address[held].tolist()
        self._sizes = lifetimes.size[held].tolist()
        self._names: list[str] = [names[one] for one in group[held]]
        self._has_addresses = has_addresses
        self._by_size: dict[int, set[str]] = {}
        for size, name in zip(self._sizes, self._names, strict=True):
            self._by_size.setdefault(size, set()).add(name)

    def __call__(self, address: int, size: int) -> str:
        if not self._has_addresses:
            of_size = self._by_size.get(size, set())
            return next(iter(of_size)) if len(of_size) == 1 else f"blocks of {format_size(size)}"
        place = bisect_right(self._begins, address) - 1
        if place >= 0 and address < self._begins[place] + max(self._sizes[place], 1):
            return self._names[place]
        return f"blocks of {format_size(size)}"


def _reserved(past: Past, steps: Steps) -> ReservedUse:
    peak = past.peak
    return ReservedUse(
        event=peak.event,
        step=step_of(steps, peak.event),
        reserved_bytes=peak.reserved_bytes,
        allocated_bytes=peak.requested_bytes + peak.rounding_bytes - peak.pending_free_bytes,
        rounding_bytes=peak.rounding_bytes,
        pending_bytes=peak.pending_free_bytes,
        cached_bytes=peak.cached_bytes,
        fragments_bytes=peak.split_bytes,
        shared_bytes=past.peak_shared_bytes,
        exact=past.is_exact,
    )


def _room(out_of_memory: list[OutOfMemory]) -> int | None:
    """What the program surely had room for, where a request found no more."""
    if not out_of_memory:
        return None
    last = out_of_memory[-1]
    if last.cause == "card" and last.device_free_bytes is not None:
        return last.reserved_bytes + last.device_free_bytes
    return last.limit_range_bytes[0] if last.limit_range_bytes else None


def _card(card: RecordedCard | None, reserved: int, out_of_memory: list[OutOfMemory]) -> CardUse:
    if card is None:
        return CardUse(None, None, None, None, reserved, None, None)
    if card.profile is None:
        return CardUse(card.name, card.total_bytes, None, None, reserved, None, None)
    context = card.profile.context_bytes
    other = None
    if out_of_memory and (free := out_of_memory[-1].device_free_bytes) is not None:
        used = card.total_bytes - free
        other = max(0, used - context - out_of_memory[-1].reserved_bytes)
    shown = None if other is None else context + reserved + other
    source = card.profile.sources["context_bytes"]
    return CardUse(card.name, card.total_bytes, context, source, reserved, other, shown)
