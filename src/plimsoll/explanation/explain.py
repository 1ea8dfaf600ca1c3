"""Explains a recording: finds the parts of the explanation in order and puts them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.units import parse_memory
from plimsoll.engine.gpus.recorded_card import named_card
from plimsoll.explanation.advice import give_advice
from plimsoll.explanation.explained_device import find_devices
from plimsoll.explanation.explained_usage import ExplainedUsage, Owners
from plimsoll.explanation.explanation import Explanation
from plimsoll.explanation.fragmentation import find_fragmentation
from plimsoll.explanation.oom import MOST_EXPLAINED, explain_failure
from plimsoll.explanation.parts import CardUse, StepsFound
from plimsoll.explanation.peak import run_seconds
from plimsoll.explanation.ranking import needed, ranked
from plimsoll.explanation.recorded_causes import (
    card_parts,
    growing_lines,
    recorded_causes,
    with_savings,
)
from plimsoll.explanation.script_changes import try_changes
from plimsoll.explanation.search import Search, recorded_setting
from plimsoll.explanation.source import read_source
from plimsoll.explanation.state import recorded_failures
from plimsoll.recordings.analysis.lines import source_line
from plimsoll.recordings.causes.outside_pytorch import own_bytes, with_outside
from plimsoll.recordings.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from plimsoll.engine.gpus.recorded_card import RecordedCard
    from plimsoll.explanation.explained_device import Device
    from plimsoll.explanation.leak_advice import FoundLeak
    from plimsoll.explanation.parts import Advice, OutOfMemory, ScriptRun
    from plimsoll.prediction.parts import GpuUse
    from plimsoll.recordings.analysis.leaks import Leak

_OF_FAILURE = "measured: what the process held outside PyTorch when a request failed"


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
    error: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explains a program's use of GPU memory, and finds what would help.

    >>> import plimsoll
    >>> found = plimsoll.explain("examples/recordings/gpt2_adamw.pickle.gz")  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP

    Args:
        source: The file of a snapshot, a trace or a recording; or a `Recording`. It can also be the
            process id of a running program in which plimsoll is installed.
        device: The device to explain. The default is the device with the most memory in use, but
            a device on which a request failed comes before all others.
        gpu: The card that the program ran on, such as "H100". The explanation then includes the
            card's memory and the CUDA context. The default is the card that the recording names, if
            any.
        limit: The most memory that the program may reserve. The default is the limit that the
            recording shows. For another limit, a replay finds which request fails, if any.
        version: The version of PyTorch whose rules the replays follow. The default is the recorded
            one.
        advice: Whether to search for advice.
        search_events: The number of events that the search may replay; 0 for no search. The default
            is 400 million: forty replays of ten million events. A replay counts three times if
            frees wait for other streams. The count does not depend on the machine's speed, so a
            recording always gets the same advice.
        script: The recorded program. plimsoll runs it up to eight times on a simulated GPU:
            unchanged, and with the changes that `fit` knows. That takes extra time.
        arguments: The script's arguments.
        vary: The script's argument with the size of a batch, such as "--batch-size".
        error: The text of PyTorch's out-of-memory error. The text says how much memory the process
            held on the card. With this number, plimsoll can tell the memory of the process's other
            libraries from the memory of other processes.
        progress: A function that is called at intervals with a description of the current work.

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
    usage = ExplainedUsage(chosen)
    failures = _Failures(usage, limit_bytes)
    leaks = growing_lines(usage)
    found = _FoundAdvice(
        Search(
            chosen.recording,
            version=version,
            limit=limit_bytes or failures.room_bytes(),
            events=search_events,
            progress=progress,
        )
    )
    if advice and chosen.is_known and search_events != 0:
        found.add_replayed(usage, leaks, failures.last)
    if script is not None:
        tell(f"running {script} with changes, simulated")
        found.add_changes(usage, script, arguments, vary)
    return _explanation(
        usage, failures, [one.leak for one in leaks], found, uses, limit_bytes, error,
        [*recording.problems, *of_others, *_history_notes(chosen), *failures.notes, *found.notes],
    )  # fmt: skip


class _Failures:
    """The failed requests, and the state of the memory at the last one.

    Attributes:
        out_of_memory: The last failures, each explained.
        fragmentation: The free part of reserved memory before the last failure. If no request
            failed, the free part when the most memory was reserved.
        notes: A note if there are more failures than explanations.
    """

    def __init__(self, usage: ExplainedUsage, limit_bytes: int | None) -> None:
        past, trace = usage.device.past, usage.trace
        failed = past.failures()
        self.notes: list[str] = []
        if len(failed) > MOST_EXPLAINED:
            self.notes.append(
                f"{len(failed)} requests failed; the last {MOST_EXPLAINED} are explained"
            )
        self.out_of_memory = [
            explain_failure(
                past, event, limit_bytes, lambda stack: source_line(trace.frames(stack))
            )
            for event in failed[-MOST_EXPLAINED:]
        ]
        moment = failed[-1] - 1 if failed else usage.reserved.event
        self.fragmentation = find_fragmentation(past, moment, Owners(usage, moment))

    @property
    def last(self) -> OutOfMemory | None:
        return self.out_of_memory[-1] if self.out_of_memory else None

    def room_bytes(self) -> int | None:
        """Returns the bytes that the program could certainly reserve; None if unknown."""
        last = self.last
        if last is None:
            return None
        if last.cause == "card" and last.device_free_bytes is not None:
            return last.reserved_bytes + last.device_free_bytes
        return last.limit_range_bytes[0] if last.limit_range_bytes else None


class _FoundAdvice:
    """The advice from replays and from runs of the script.

    Attributes:
        search: The replays of the recording under other settings.
        advice: The advice, in the order in which it was found.
        script_run: The unchanged script's run; None if it did not run.
        notes: The notes on both searches.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.advice: list[Advice] = []
        self.script_run: ScriptRun | None = None
        self.notes: list[str] = []

    def add_replayed(
        self, usage: ExplainedUsage, leaks: Sequence[FoundLeak], failure: OutOfMemory | None
    ) -> None:
        card = usage.device.card
        self.advice += give_advice(
            self.search,
            usage.device.base,
            usage.lifetimes,
            usage.steps,
            usage.categories,
            leaks=leaks,
            failure=failure,
            total_bytes=card.total_bytes if card else None,
        )
        if not self.search.trials and not self.search.ended_early:
            self.notes.append("there is no advice, as this recording cannot be replayed")

    def add_changes(
        self, usage: ExplainedUsage, script: str, arguments: Sequence[str], vary: str | None
    ) -> None:
        recording, card = usage.device.recording, usage.device.card
        own = recorded_setting(recording)
        changes, self.script_run, notes = try_changes(
            script,
            arguments,
            gpu=card.name if card is not None and card.profile is not None else "H100",
            conf=recording.conf,
            allocator="native" if own is None else own.allocator,
            vary=vary,
            recorded_bytes=usage.peak.allocated_bytes,
            is_whole=not recorded_failures(usage.trace),
        )
        self.advice += changes
        self.notes += notes


def _history_notes(device: Device) -> list[str]:
    if device.is_known:
        return device.notes
    of_pieces = device.notes if device.recording.allocator != "native" else []
    return [
        *of_pieces,
        "there is no history, so this describes the present moment only: the peak, leaks and "
        "advice need a history. `plimsoll run --record run.plim SCRIPT` records one; "
        "torch.cuda.memory._record_memory_history() makes PyTorch keep one from then on",
    ]


def _explanation(
    usage: ExplainedUsage,
    failures: _Failures,
    leaks: list[Leak],
    found: _FoundAdvice,
    uses: list[GpuUse],
    limit_bytes: int | None,
    error: str | None,
    notes: list[str],
) -> Explanation:
    chosen, past, base, steps = usage.device, usage.device.past, usage.device.base, usage.steps
    of_card = [] if past.is_what_if else failures.out_of_memory
    causes = recorded_causes(usage, uses, failed=bool(failures.out_of_memory))
    card = _card(chosen.card, past.peak_dedicated_bytes, of_card, error)
    if of_card and (parts := card_parts(card, of_card[-1], error)) is not None:
        causes = with_outside(causes, parts)
    used, room = past.peak_dedicated_bytes, failures.room_bytes()
    most = limit_bytes or next(iter(past.limits[-1:]), None)
    advice = needed(ranked(found.advice), causes, chosen.card, used, room, most)
    return Explanation(
        file=chosen.recording.name,
        device=usage.trace.device,
        devices=uses,
        events=usage.trace.event_count,
        has_history=chosen.is_known,
        allocator=chosen.recording.allocator,
        conf=chosen.recording.conf,
        limit_bytes=limit_bytes,
        fits_limit=None if limit_bytes is None else chosen.fits,
        card=card,
        reserved=usage.reserved,
        peak=usage.peak,
        fragmentation=failures.fragmentation,
        num_alloc_retries=past.num_alloc_retries,
        steps=StepsFound(len(steps), steps.source, steps.confidence),
        leaks=leaks,
        out_of_memory=failures.out_of_memory,
        served_requests=base.avoided_ooms if base is not None and past.is_what_if else 0,
        advice=advice,
        tried=len(found.search.trials),
        search_ended_early=found.search.ended_early,
        script=found.script_run,
        causes=with_savings(causes, found.advice),
        run_seconds=run_seconds(usage.trace),
        notes=notes,
    )


def _card(
    card: RecordedCard | None, reserved: int, out_of_memory: list[OutOfMemory], error: str | None
) -> CardUse:
    if card is None:
        return CardUse(None, None, None, None, reserved, None, None)
    if card.profile is None:
        return CardUse(card.name, card.total_bytes, None, None, reserved, None, None)
    context, source = card.profile.context_bytes, card.profile.sources["context_bytes"]
    other = None
    if out_of_memory and (free := out_of_memory[-1].device_free_bytes) is not None:
        of_pytorch = out_of_memory[-1].reserved_bytes
        outside = max(0, card.total_bytes - free - of_pytorch)
        own = None if error is None else own_bytes(error)
        room = outside if own is None else min(outside, own - of_pytorch)
        # PyTorch's reserved bytes include pools whose memory vLLM's sleep mode has released. `own`
        # does not include these pools, so `room` may be negative.
        # `context` is the usual size of a CUDA context on this card. If `room` is smaller, the
        # process had loaded less of CUDA than usual.
        if context > room > 0:
            context, source = room, _OF_FAILURE
        other = max(0, outside - context)
    shown = None if other is None else context + reserved + other
    return CardUse(card.name, card.total_bytes, context, source, reserved, other, shown)
