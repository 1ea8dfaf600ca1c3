"""Formats an explanation as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.layout import Verbatim, paragraphs
from plimsoll.base.units import format_count, format_size, has_share, size_row
from plimsoll.explanation.first_lines import cause, effect, first_lines, reason
from plimsoll.prediction.gpu_rows import gpu_rows
from plimsoll.recordings.analysis.category_names import category_title
from plimsoll.recordings.analysis.leaks import LEAST_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from plimsoll.explanation.parts import Advice, ExplanationParts, OutOfMemory
    from plimsoll.recordings.analysis.lines import LineShare

_ALLOCATORS = {
    "native": "PyTorch's allocator",
    "elastic": "plimsoll's elastic allocator",
    "uncached": "an allocator that keeps nothing",
}
# These kinds of advice use the elastic allocator. When it retries a request, it waits for other
# streams, but does not return cached memory to the driver as PyTorch's allocator does.
_OTHER_RETRIES = ("elastic", "spill")
_MOST_LEAKS = 5
_INDENT = "  "


def explanation_text(explanation: ExplanationParts, width: int | None = None) -> str:
    """Returns the whole explanation as text, without colour.

    Args:
        explanation: The explanation.
        width: The number of columns; None does not fold lines.
    """
    parts = (
        _title, _card, _reserved, _peak, _fragmentation, _leaks, _out_of_memory, _advice,
        _of_the_script, _notes,
    )  # fmt: skip
    return paragraphs(
        [
            first_lines(explanation),
            _devices(explanation, width),
            *(part(explanation) for part in parts),
        ],
        width,
    )


def _devices(e: ExplanationParts, width: int | None) -> Iterator[str]:
    """Yields a row for each device if there are several."""
    another = next((use.device for use in e.devices if use.device != e.device), None)
    if another is None:
        return
    yield (
        f"GPU {e.device} of {len(e.devices)} is explained here; --device {another} explains "
        "another one"
    )
    yield from gpu_rows(e.devices, width)


def _title(e: ExplanationParts) -> Iterator[str]:
    steps = ""
    if e.steps.count:
        how = "as marked" if e.steps.source == "marks" else "found from the rhythm of allocations"
        steps = f", {format_count(e.steps.count, 'step')} ({how})"
    events = f"{format_count(e.events, 'event')}{steps}" if e.has_history else "no history"
    yield f"{e.file}, device {e.device}: {events}"
    conf = f", recorded with {e.conf}" if e.conf else ""
    yield f"allocator: {_allocator(e)}{conf}"


def _card(e: ExplanationParts) -> Iterator[str]:
    card = e.card
    yield "Memory in use on the card (nvidia-smi's figure) = context + reserved + others"
    if card.context_bytes is None:
        why = "here; name the card with --gpu" if card.gpu is None else f"of {card.gpu}"
        yield _row(None, f"CUDA context: unknown {why}")
    else:
        estimated = str(card.context_source).startswith("estimate")
        how = "estimated" if estimated else "measured"
        yield _row(card.context_bytes, f"CUDA context of one process, {how} ({card.gpu})")
    when = ", at its peak" if e.has_history else ""
    yield _row(card.reserved_bytes, f"reserved by {_allocator(e)}{when}")
    if card.other_bytes is None:
        yield _row(None, "others (processes, libraries): a recording does not say; see nvidia-smi")
    else:
        yield _row(card.other_bytes, "others: the rest of the memory in use when a request failed")
    if card.total_bytes is not None:
        yield _row(card.shown_bytes, f"in all, of {format_size(card.total_bytes)} ({card.gpu})")


def _reserved(e: ExplanationParts) -> Iterator[str]:
    r = e.reserved
    exact = "" if r.exact else " (see the notes)"
    peak = f", at the peak of reserved memory, event {r.event:,}{_in_step(r.step)}"
    when = peak if e.has_history else ""
    yield f"Reserved = allocated + cached + fragments{when}{exact}"
    rounding = f" ({format_size(r.rounding_bytes)} is rounding)" if r.rounding_bytes else ""
    yield _row(r.allocated_bytes, f"allocated: in live tensors{rounding}", r.reserved_bytes)
    if r.pending_bytes:
        yield _row(r.pending_bytes, "freed, but another stream may still use it", r.reserved_bytes)
    for size, what in (
        (r.cached_bytes, "cached: free; empty_cache() would return it to the driver"),
        (r.fragments_bytes, "fragments: free, but between live blocks"),
    ):
        if has_share(size, r.reserved_bytes):
            yield _row(size, what, r.reserved_bytes)
    shared = f", {format_size(r.shared_bytes)} of it in shared memory" if r.shared_bytes else ""
    yield _row(r.reserved_bytes, f"reserved{shared}")
    yield from _retries(e)


def _retries(e: ExplanationParts) -> Iterator[str]:
    """Says how often PyTorch's allocator released cached memory in order to serve a request."""
    if e.allocator != "native" or not e.num_alloc_retries:
        return
    # `num_alloc_retries` includes failed requests for which PyTorch had no cached memory to
    # release. Subtract these.
    times = e.num_alloc_retries - sum(not failed.returned_bytes for failed in e.out_of_memory)
    if times > 0:
        yield (
            f"{_INDENT}cached memory went back to the driver {_times(times)}, when a request found "
            "no room"
        )


def _peak(e: ExplanationParts) -> Iterator[str]:
    p = e.peak
    when = "" if p.seconds is None else f", {p.seconds:.2f} s after the first event"
    allocated = f"{format_size(p.allocated_bytes)} allocated in {_blocks(p.blocks)}"
    if not e.has_history:
        yield f"Live now: {allocated}"
    elif p.event == e.reserved.event:
        yield f"At event {p.event:,}: {allocated}{when}"
    else:
        event = f"event {p.event:,}{_in_step(p.step)}{when}"
        yield f"The peak of allocated memory, at another time: {allocated}, {event}"
    source = {
        "program": "recorded with each block",
        "stacks": "from call stacks",
        "lifetimes": "guessed from lifetimes, because there are no call stacks",
        "nothing": "unknown: there are no call stacks, and no steps were found",
    }[p.categories_from]
    yield f"By category ({source}):"
    for name, size in sorted(p.by_category.items(), key=lambda item: -item[1]):
        if has_share(size, p.allocated_bytes):
            yield _row(size, category_title(name), p.allocated_bytes)
    if p.lines:
        yield "By source line:"
        yield from _lines(p.lines, p.allocated_bytes)
    else:
        yield "By source line: not known; this needs a recording with call stacks."


def _fragmentation(e: ExplanationParts) -> Iterator[str]:
    f = e.fragmentation
    moment = "last request that failed" if e.out_of_memory else "peak of reserved memory"
    when = f"{'before' if e.out_of_memory else 'at'} the {moment}"
    yield f"Fragmentation {when}, after event {f.event:,}" if e.has_history else "Fragmentation"
    if not f.free_bytes:
        yield f"{_INDENT}no reserved memory was free"
        return
    pieces = format_count(f.holes, "piece")
    yield f"{_INDENT}{format_size(f.free_bytes)} was free, in {pieces}"
    if f.movable_bytes is not None:
        movable = format_size(f.movable_bytes)
        yield f"{_INDENT}{movable} of it in whole pieces, which can be mapped where they are needed"
    elif f.largest_request_bytes:
        largest = format_size(f.largest_request_bytes)
        yield f"{_INDENT}the largest request that needs no new memory: {largest} (tried)"
    elif f.largest_request_bytes is not None:
        yield f"{_INDENT}no request above 1 MiB would be served without new memory (tried)"
    kind = "segment" if f.movable_bytes is None else "piece"
    for segment in f.pinned:
        blocks = format_count(segment.blocks, "live block")
        at = "" if segment.address is None else f" at {segment.address:#x}"
        yield (
            f"{_INDENT}{format_size(segment.free_bytes)} is free in the "
            f"{format_size(segment.total_bytes)} {kind}{at}, pinned by {blocks}:"
        )
        yield from _lines(segment.lines[:2], None, depth=2)
    if f.pinned_segments > len(f.pinned):
        more = format_count(f.pinned_segments - len(f.pinned), f"more {kind}")
        yield f"{_INDENT}and {more}, partly in use"


def _leaks(e: ExplanationParts) -> Iterator[str]:
    if not e.has_history:
        return
    yield "Leaks"
    if not e.leaks:
        if e.steps.count >= LEAST_STEPS:
            yield f"{_INDENT}none: nothing grows from step to step"
        else:
            found = format_count(e.steps.count, "step") if e.steps.count else "no steps"
            yield f"{_INDENT}not known: plimsoll found {found}, and needs at least {LEAST_STEPS}"
        return
    for leak in e.leaks[:_MOST_LEAKS]:
        yield (
            f"{_INDENT}{leak.what}: {format_size(round(leak.slope_bytes))} more {leak.each_time} "
            f"(confidence {_confidence(leak.confidence)})"
        )
        grown = f"{format_size(leak.grown_bytes)} in {format_count(leak.blocks, 'more block')}"
        times = "steps" if leak.inside_step is None else "passes"
        yield (
            f"{_INDENT * 2}{grown} over the "
            f"examined {times}; the last block was allocated at event {leak.last_event:,}"
        )
    if len(e.leaks) > _MOST_LEAKS:
        yield f"{_INDENT}and {len(e.leaks) - _MOST_LEAKS} more"


def _out_of_memory(e: ExplanationParts) -> Iterator[str]:
    for number, failed in enumerate(e.out_of_memory):
        if number:
            yield ""
        yield from _failure(failed)
        # The reason for the last failure already stands at the top of the explanation.
        if failed is not e.out_of_memory[-1]:
            yield f"{_INDENT}Why: {cause(failed)} {reason(failed)}"
        if not failed.recorded:
            yield f"{_INDENT}What the program does then is not known; what follows is not replayed."


def _failure(o: OutOfMemory) -> Iterator[str]:
    where = f" at {o.at}" if o.at else ""
    under = "" if o.recorded else ", under the given limit"
    yield f"Out of memory at event {o.event:,}{where}{under}"
    from_driver = f"the allocator asked the driver for {format_size(o.needed_bytes)}"
    yield _row(o.asked_bytes, f"asked for; {from_driver}")
    yield _row(o.allocated_bytes, "allocated")
    yield _row(
        o.reserved_bytes, "reserved, after all returnable memory had gone back to the driver"
    )
    if o.returned_bytes:
        yield _row(o.returned_bytes, "had been returned to the driver for this request")
    if o.device_free_bytes is not None:
        yield _row(o.device_free_bytes, "free on the device")


def _advice(e: ExplanationParts) -> Iterator[str]:
    if not e.tried:
        if e.search_ended_early:
            yield (
                f"Advice: nothing was tried; a replay takes {format_count(e.events, 'event')}, and "
                "--search-events allows fewer"
            )
        return
    ended = "; --search-events ended the search early" if e.search_ended_early else ""
    count = format_count(e.tried, "replay")
    mine = [advice for advice in e.advice if advice.kind != "script"]
    untried = [number for number, advice in enumerate(mine, 1) if not advice.was_tried]
    yield f"Advice, the cheapest first, {_which_tried(untried, len(mine))} ({count}{ended})"
    if not mine:
        failed = " serves the request that failed" if e.out_of_memory else " would save 2% or more"
        yield f"{_INDENT}nothing that was tried{failed}"
    for number, advice in enumerate(mine, 1):
        yield from _one_advice(number, advice, e.run_seconds)
    if e.script is None:
        yield f"{_INDENT}With --script train.py, plimsoll also tries changes to the program."


def _which_tried(untried: list[int], count: int) -> str:
    """Says which of the numbered pieces of advice a replay has tried."""
    if not untried:
        return "each tried by replaying this recording"
    if len(untried) == count:
        return "not tried; what was tried by replaying does not help"
    return f"each tried by replaying this recording, except {', '.join(map(str, untried))}"


def _of_the_script(e: ExplanationParts) -> Iterator[str]:
    script = e.script
    if script is None:
        return
    runs = format_count(script.runs, "run")
    yield f"Changes to {script.script}, each tried on a simulated {script.gpu} ({runs})"
    reserved = format_size(script.peak_reserved_bytes)
    whether = "" if script.fits else ", more than the card has"
    yield f"{_INDENT}unchanged, the script reserves {reserved} at its peak{whether}"
    changes = [advice for advice in e.advice if advice.kind == "script"]
    if not changes:
        what = "would save 2% or more" if script.fits else "makes it fit"
        yield f"{_INDENT}nothing that was tried {what}"
    for number, advice in enumerate(changes, 1):
        yield from _one_advice(number, advice, e.run_seconds)


def _one_advice(number: int, a: Advice, run_seconds: float | None) -> Iterator[str]:
    """Yields a piece of advice, the text to copy, and a line of further figures."""
    found = effect(a)
    yield f"{number:>3}. {a.what}: {found}" if found else f"{number:>3}. {a.what}"
    for line in a.how.splitlines():
        yield Verbatim(f"{_INDENT * 2} {line}")
    if details := "; ".join(_details(a, run_seconds)):
        yield f"{_INDENT * 2} {details}"


def _details(a: Advice, run_seconds: float | None) -> Iterator[str]:
    if not a.was_tried:
        yield a.note
        return
    if a.peak_reserved_range_bytes is not None:
        least, most = map(format_size, a.peak_reserved_range_bytes)
        reserved = f"{least} to {most} reserved"
    else:
        reserved = f"{format_size(a.peak_reserved_bytes)} reserved"
    if a.peak_dedicated_bytes is not None:
        reserved += f", {format_size(a.peak_dedicated_bytes)} on the card"
    yield reserved
    if a.num_alloc_retries and a.kind not in _OTHER_RETRIES:
        yield f"the allocator returns cached memory to the driver {_times(a.num_alloc_retries)}"
    seconds = a.driver_seconds + a.bus_seconds
    share = _share_of_run(seconds, run_seconds)
    change = f"{abs(seconds):.3f} s {'slower' if seconds > 0 else 'faster'} {share}"
    if a.bus_seconds:  # `bus_seconds` is a lower bound
        yield f"{'at least' if seconds > 0 else 'at most'} {change}"
    elif abs(seconds) >= 0.001:
        yield f"about {change}"
    if a.note:
        yield a.note


def _share_of_run(seconds: float, run_seconds: float | None) -> str:
    """Formats a change in time as a share of the recorded run's length."""
    if run_seconds is None:
        return "(the run's length is unknown)"
    if seconds > run_seconds:
        return "(more than the run)"
    return f"({seconds / run_seconds:+.1%} of the run)"


def _notes(e: ExplanationParts) -> Iterator[str]:
    for note in e.notes:
        yield f"note: {note}"


def _lines(lines: Iterable[LineShare], whole: int | None, depth: int = 1) -> Iterator[str]:
    for line in lines:
        yield _row(line.bytes, f"{line.line} ({_blocks(line.blocks)})", whole, depth)


def _row(size: int | None, what: str, whole: int | None = None, depth: int = 1) -> str:
    return f"{_INDENT * depth}{size_row(size, what, whole)}"


def _allocator(e: ExplanationParts) -> str:
    return _ALLOCATORS.get(e.allocator, e.allocator)


def _in_step(step: int | None) -> str:
    return "" if step is None else f" in step {step}"


def _blocks(count: int) -> str:
    return format_count(count, "block")


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count:,} times"


def _confidence(value: float) -> str:
    return "over 99.9%" if value > 0.999 else f"{value:.1%}"
