"""Writes the first lines of an explanation: the answer, the reason, and the best advice."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from plimsoll.base.layout import Verbatim
from plimsoll.base.units import format_count, format_size
from plimsoll.explanation.ranking import OF_THE_ALLOCATOR
from plimsoll.recordings.analysis.lines import users_part
from plimsoll.recordings.causes.cause import GROWS_SHARE, SLIGHT_SHARE, main_cause, other_growth
from plimsoll.recordings.causes.wording import also, most_held, why

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.explanation.parts import Advice, ExplanationParts, OutOfMemory
    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.causes.cause import Cause


def first_lines(e: ExplanationParts) -> Iterator[str]:
    """Yields the lines of `answers`, then the reason for what they report, then advice."""
    yield from answers(e)
    found, leak = _cause(e), _leading_leak(e)
    if leak is not None and not e.out_of_memory and not (found and found.growth_bytes):
        found = None
        yield _grown(leak)
    elif found is not None:
        yield why(found)
        if found.patch:
            yield Verbatim(f"Try: {found.patch}")
    if e.out_of_memory:
        failed = e.out_of_memory[-1]
        begin = "Why: " if found is None else "The request failed, because "
        yield f"{begin}{cause(failed)} {reason(failed)}"
    elif found is None and leak is None and (line := _most_held(e)) is not None:
        yield line
    if found is None or not found.patch:
        yield from _try(e)
    if leak is None and (grows := other_growth(e.causes, found)) is not None:
        yield also(grows)


def _cause(e: ExplanationParts) -> Cause | None:
    return main_cause(e.causes, e.peak.allocated_bytes)


def _leading_leak(e: ExplanationParts) -> Leak | None:
    """Returns the fastest leak if it explains the peak; None if a cause explains it better."""
    leak, found = next(iter(e.leaks), None), _cause(e)
    if leak is None or (found is not None and found.growth_bytes):
        return leak
    least = SLIGHT_SHARE * e.peak.allocated_bytes
    if found is not None:
        is_needless = found.is_needless(e.peak.allocated_bytes)
        least = found.bytes if is_needless else GROWS_SHARE * e.peak.allocated_bytes
    return None if leak.grown_bytes < least else leak


def answers(e: ExplanationParts) -> Iterator[str]:
    """Yields the most important statement about the program, perhaps after a warning.

    If --limit was given, the statement says whether the program fits in that limit. Otherwise the
    statement is the main finding, such as a failed request or a leak. The warning says that the
    script of --script does not seem to be the recorded program.

    If the categories are a guess, the first line ends with a sentence that says so.
    """
    first, *more = _answers(e)
    guess = "Categories are guessed from lifetimes: the recording has no call stacks."
    yield f"{first} {guess}" if e.peak.categories_from == "lifetimes" else first
    yield from more


def _answers(e: ExplanationParts) -> Iterator[str]:
    script = e.script
    if script is not None and not script.seems_recorded:
        yield (
            f"{script.script} does not seem to be the program that was recorded: with these "
            f"arguments it allocates {format_size(script.peak_allocated_bytes)} at its peak, on a "
            f"simulated {script.gpu}, and the recorded one {format_size(e.peak.allocated_bytes)}."
        )
    if e.limit_bytes is not None:
        yield _fit(e, e.limit_bytes)
    elif e.out_of_memory:
        yield _failed(e.out_of_memory[-1])
    elif (leak := _leading_leak(e)) is not None:
        yield _kept(e, leak) or _leak(leak)
    else:
        yield _peak(e)


def _fit(e: ExplanationParts, limit: int) -> str:
    """Says whether the recorded program fits in the given limit."""
    most = format_size(limit)
    does_not_fit = f"The program does not fit in {most}"
    failed = next((one for one in e.out_of_memory if not one.recorded), None)
    if failed is not None:
        needed, over = format_size(e.peak.allocated_bytes), e.peak.allocated_bytes - limit
        by = f"{format_size(over)} more." if over > 0 else "which would fit if no memory were lost."
        when = f"out of memory at event {failed.event:,}"
        return f"{does_not_fit}: {when}; at its peak it allocates {needed}, {by}"
    reserved, is_more = format_size(e.card.reserved_bytes), e.card.reserved_bytes > limit
    if not e.fits_limit and is_more:
        return f"{does_not_fit}: {reserved} is reserved."
    if e.out_of_memory:
        event = e.out_of_memory[-1].event
        return f"{does_not_fit}: out of memory at event {event:,}, as recorded."
    if e.served_requests:
        return (
            f"In {most} the requests that failed are served; what the program would have asked for "
            "after them is not known."
        )
    if is_more:
        return f"The program runs in {most}, although {reserved} is reserved at its peak."
    return f"The program fits in {most}: no more than {reserved} is reserved."


def _failed(o: OutOfMemory) -> str:
    where = f" at {o.at}" if o.at else ""
    return (
        f"Out of memory{where}: {format_size(o.asked_bytes)} was asked for, with "
        f"{format_size(o.allocated_bytes)} allocated and {format_size(o.reserved_bytes)} reserved."
    )


def _kept(e: ExplanationParts, leak: Leak) -> str:
    """Names the line that keeps the memory, as the main cause does, and the line that requests it.

    Returns "" if memory does not grow by the main cause, or its line is unknown.
    """
    found = _cause(e)
    if found is None or found.line is None or not found.growth_bytes:
        return ""
    more = f"{format_size(found.growth_bytes)} more {leak.each_time}"
    if found.line == users_part(leak.what):
        return f"The program leaks: {found.line} keeps {more}."
    return f"The program leaks: {found.line} keeps {more}, mostly made at {leak.what}."


def _leak(leak: Leak) -> str:
    more = f"{format_size(round(leak.slope_bytes))} more {leak.each_time}"
    return f"The program leaks: {leak.what} holds {more}."


def _grown(leak: Leak) -> str:
    grown = f"{format_size(leak.grown_bytes)} in {format_count(leak.blocks, 'more block')}"
    times = "steps" if leak.inside_step is None else "passes"
    return f"Why: over the examined {times}, {leak.what} has kept {grown}."


def _most_held(e: ExplanationParts) -> str | None:
    return most_held(e.peak.by_category, e.peak.lines)


def _peak(e: ExplanationParts) -> str:
    r = e.reserved
    when = "At its peak" if e.has_history else "Now"
    whole = f"{when} the program reserves {format_size(r.reserved_bytes)}"
    free = r.cached_bytes + r.fragments_bytes
    if r.allocated_bytes == r.reserved_bytes:
        return f"{whole}, all of it for live tensors."
    live = (
        f"{whole}. Live tensors take {format_size(r.allocated_bytes)} of it; {format_size(free)} "
        f"({free / r.reserved_bytes:.1%}) is free."
    )
    if e.peak.event == r.event or not e.has_history:
        return live
    most = format_size(e.peak.allocated_bytes)
    return f"{live} Live tensors peak at another time, at event {e.peak.event:,}: {most}."


def _try(e: ExplanationParts) -> Iterator[str]:
    """Yields the first piece of advice that helps, and a line to copy."""
    is_another = e.script is not None and not e.script.seems_recorded
    helpful = (
        one
        for one in e.advice
        if one.serves_failed_requests is not False and not (is_another and one.kind == "script")
    )
    best = next(helpful, None)
    if best is None:
        return
    found = effect(best)
    if found and best.note and best.kind in OF_THE_ALLOCATOR:
        found += f", but {best.note}"
    helps = f"{best.what} ({found})" if found else best.what
    began = "plimsoll tried a change that helps" if best.was_tried else "What may help (not tried)"
    yield f"{began}: {helps}"
    if len(best.how.splitlines()) == 1:
        yield Verbatim(f"Try: {best.how}")
    elif e.script is not None:  # the advice changes the script
        own = ["--", *e.script.arguments] if e.script.arguments else []
        words = ["plimsoll", "fit", e.script.script, "--gpu", e.script.gpu]
        yield Verbatim(f"Try: {shlex.join([*words, '--apply', 'changed.py', *own])}")


def effect(advice: Advice) -> str:
    """Describes in words what a piece of advice achieves.

    If a request failed, the words say whether the advice serves that request. Otherwise they say
    how much memory the advice saves, and are "" if the advice saves nothing.
    """
    if advice.serves_failed_requests is False:
        return "not enough for the request that failed"
    if advice.serves_failed_requests:
        return "serves the request that failed"
    least = "at least " if advice.kind == "leak" else ""
    return f"saves {least}{format_size(advice.saves_bytes)}" if advice.saves_bytes else ""


def cause(o: OutOfMemory) -> str:
    """Says which limit refused a request, or that the card was full."""
    if o.cause == "card":
        return "the card had too little left for another segment."
    if o.limit_bytes is not None:
        return f"the program may reserve no more than {format_size(o.limit_bytes)}."
    if o.limit_range_bytes is None:
        return "the program has a limit."
    least, below = o.limit_range_bytes
    which = f"between {format_size(least)} and {format_size(below)}"
    if below - least == 1:
        which = f"of {format_size(least)}"
    return (
        f"the card had room, but the program has a limit (set_per_process_memory_fraction) {which}."
    )


def reason(o: OutOfMemory) -> str:
    """Says why free memory did not serve the request."""
    free, hole = format_size(o.free_bytes), format_size(o.largest_hole_bytes)
    asked = format_size(o.asked_bytes)
    if o.reason == "too_little":
        missing = f"; {format_size(o.missing_bytes)} was missing" if o.missing_bytes else ""
        return (
            f"Too little reserved memory was free: {free} in all, for a request of "
            f"{asked}{missing}."
        )
    if o.reason == "fragmentation":
        return (
            f"Fragmentation: {free} of reserved memory was free, but in pieces between live "
            f"blocks; the largest is {hole}."
        )
    if o.reason == "max_split_size":
        return (
            f"A free piece of {hole} was there, but max_split_size_mb keeps pieces that large for "
            "larger requests."
        )
    if o.reason == "unknown":
        return (
            "Reserved memory seems to have had room; why it did not serve the request is not known."
        )
    who = "stream" if o.reason == "other_streams" else "pool"
    return (
        f"{free} of reserved memory was free, and a piece was large enough, but it belongs to "
        f"another {who}; this {who}'s largest free piece was {hole}."
    )
