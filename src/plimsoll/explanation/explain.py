"""The explanation of a recording: what each part needs, and in which order."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.analysis import find_categories, find_steps, source_line, source_lines
from plimsoll.errors import InputError
from plimsoll.explanation.advice import give_advice
from plimsoll.explanation.explained_device import find_devices
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
from plimsoll.explanation.script_changes import try_changes
from plimsoll.explanation.search import Search, recorded_setting
from plimsoll.explanation.source import read_source
from plimsoll.explanation.state import recorded_failures
from plimsoll.gpus import named_card
from plimsoll.recordings import Recording
from plimsoll.units import format_size, parse_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from plimsoll.analysis import Lifetimes, Steps
    from plimsoll.explanation.state import Past
    from plimsoll.gpus import RecordedCard
    from plimsoll.recordings import DeviceTrace


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
        device: Which device; by default the one with the most memory in use, of those on which
            requests failed if there are any.
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
    limit_bytes = None if limit is None else parse_memory(limit)
    chosen, uses, of_others = find_devices(
        recording, device, named_card(gpu) if gpu else None, limit_bytes, version
    )
    problems = [*recording.problems, *of_others]
    recording, card, lifetimes = chosen.recording, chosen.card, chosen.lifetimes
    past, base, notes, is_known = chosen.past, chosen.base, chosen.notes, chosen.is_known
    (trace,) = recording.devices
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
        past.round_request, chosen.peak_allocated_bytes,
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
        devices=uses,
        events=trace.event_count,
        has_history=is_known,
        allocator=recording.allocator,
        conf=recording.conf,
        limit_bytes=limit_bytes,
        fits_limit=None if limit_bytes is None else chosen.fits,
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
