"""Formats replays as text and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.layout import paragraphs, table
from plimsoll.base.units import format_count, format_size, has_share, size_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.engine.replays.parts import ReplayResult

_NAME = "configuration"
_OPTIONAL = ("driver time", "retries", "utilization", "allocated")
"""The columns that a narrow terminal leaves out, in that order."""


def replays_text(results: Sequence[ReplayResult], width: int | None = None) -> str:
    """Formats the replays of each device of each file: an answer, a table and notes.

    The table begins with the best replay.

    Args:
        results: The replays.
        width: The columns of the terminal; None does not fold lines.
    """
    return "\n\n".join(_device_text(ranked, width) for ranked in best_first(results))


def _device_text(ranked: Sequence[ReplayResult], width: int | None) -> str:
    others = [f"{_name(each)}: {line}" for each in ranked[1:] for line in _verdict(each)]
    details = [*_explain(ranked[0]), *others]
    return paragraphs(
        [[answer_of(ranked), title(ranked[0])], _table(ranked, width), details], width
    )


def answer_of(ranked: Sequence[ReplayResult]) -> str:
    """Returns one line about the best replay.

    If other replays fit too, the line compares the best replay with one of them: the replay under
    the recorded configuration, or else the replay that reserves the most.
    """
    best = ranked[0]
    within = "" if best.limit_bytes is None else f" in {format_size(best.limit_bytes)}"
    reserved = format_size(best.peak_reserved_bytes)
    if best.first_oom is not None and not best.fits:
        oom = best.first_oom
        where = f" at {oom.at}" if oom.at else ""
        whose = "The program does not fit" if len(ranked) == 1 else "None of them fits"
        needed = format_size(oom.tried_bytes)
        return f"{whose}{within}: out of memory at event {oom.event:,}{where}, {needed} more needed"
    if best.matches_recording is False and best.first_difference is not None:
        return f"The replay differs from the recording at event {best.first_difference.event:,}"
    fitting = [each for each in ranked[1:] if each.fits]
    if not fitting:
        fits = f"The program fits{within}" if best.limit_source == "given" else "The program runs"
        alone = "" if len(ranked) == 1 else f" with {_name(best)} alone"
        allocated = format_size(best.peak_allocated_bytes)
        return f"{fits}{alone}: {reserved} is reserved at the peak, {allocated} of it allocated"
    recorded = (each for each in fitting if each.matches_recording is not None)
    other = next(recorded, fitting[-1])
    less = other.peak_reserved_bytes - best.peak_reserved_bytes
    if not less:
        return f"All reserve the same at the peak: {reserved}"
    by = f"{format_size(less)} less than {_name(other)}"
    return f"{_name(best)} reserves the least, {reserved}: {by}"


def _table(ranked: Sequence[ReplayResult], width: int | None) -> Iterator[str]:
    rows = [heads(ranked[0]), *map(row, ranked)]
    return table(rows, width=width, names=(_NAME,), optional=_OPTIONAL)


def best_first(results: Sequence[ReplayResult]) -> Iterator[list[ReplayResult]]:
    """Yields the replays of each device of each file as a list, the best first."""
    for file in dict.fromkeys(result.file for result in results):
        of_file = [result for result in results if result.file == file]
        for device in sorted({result.device for result in of_file}):
            yield sorted((one for one in of_file if one.device == device), key=_rank)


def title(result: ReplayResult) -> str:
    """Returns the title of a device's table."""
    count = format_count(result.events, "event")
    card = f" ({result.gpu})" if result.gpu else ""
    return f"{result.file}, device {result.device}{card}: {count} replayed"


def heads(result: ReplayResult) -> tuple[str, ...]:
    """Returns the heads of the table's columns, in the order of `row`."""
    tiers = ("dedicated", "shared") if result.shared else ()
    figures = ("allocated", "reserved", *tiers, "utilization", "retries", "OOM", "driver time")
    return (_NAME, *figures)


def _rank(result: ReplayResult) -> tuple[bool, int]:
    """Returns a sort key: the replays that fit come before those that ended early.

    Among the replays that fit, the one that reserves the least memory comes first. Among the
    others, the one that got furthest comes first.
    """
    return not result.fits, result.peak_reserved_bytes if result.fits else -result.events


def row(result: ReplayResult) -> tuple[str, ...]:
    """Returns a replay as a row of the table."""
    shared = result.shared
    tiers = (shared.peak_dedicated_bytes, shared.peak_bytes) if shared else ()
    return (
        _name(result),
        format_size(result.peak_allocated_bytes),
        format_size(result.peak_reserved_bytes),
        *map(format_size, tiers),
        "-" if result.utilization is None else f"{result.utilization:.1%}",
        str(result.num_alloc_retries),
        "no" if result.first_oom_event is None else f"at event {result.first_oom_event}",
        f"{result.driver_seconds * 1e3:.1f} ms",
    )


def _name(result: ReplayResult) -> str:
    return result.conf or ("default" if result.allocator == "native" else result.allocator)


def _explain(result: ReplayResult) -> Iterator[str]:
    """Yields lines on a replay: the parts of reserved memory at its peak, limits and notes."""
    peak = result.peak
    reserved = format_size(peak.reserved_bytes)
    yield f"At event {peak.event:,}, reserved memory is at its peak of {reserved}:"
    for part, what in (
        (peak.requested_bytes, "asked for by the program"),
        (peak.rounding_bytes, "added by rounding requests up"),
        (
            peak.split_bytes,
            "free, in segments that are partly in use: empty_cache cannot return it",
        ),
        (peak.cached_bytes, "free, and kept for later requests: empty_cache would return it"),
    ):
        if has_share(part, peak.reserved_bytes):
            yield f"  {size_row(part, what, peak.reserved_bytes)}"
    if peak.pending_free_bytes:
        size = format_size(peak.pending_free_bytes)
        yield f"  of the first two, {size} was freed, but another stream might still use it"
    if result.limit_bytes is not None:
        of_card = f"what {result.gpu} has" if result.limit_source == "card" else None
        yield f"Limit: {format_size(result.limit_bytes)} ({of_card or result.limit_source})."
    if result.peak_reserved_range_bytes is not None:
        least, most = map(format_size, result.peak_reserved_range_bytes)
        yield (
            f"Reserved memory at the peak is {least} to {most}, depending on when frees that wait "
            "for other streams are done."
        )
    if result.reconstructed_start:
        yield (
            "The history starts late; plimsoll takes what was live before from the final segments."
        )
    if result.matches_recording is True:
        yield "The replay has every address and segment as recorded."
    yield from _verdict(result)


def _verdict(result: ReplayResult) -> Iterator[str]:
    """Yields lines on a replay's plan, shared memory, failed request and first difference."""
    if result.plan is not None:
        yield f"Plan: {result.plan.line()}."
    if result.shared is not None:
        yield from result.shared.lines()
    if (oom := result.first_oom) is not None:
        where = f" ({oom.at})" if oom.at else ""
        yield (
            f"Out of memory at event {oom.event:,}{where}: {format_size(oom.tried_bytes)} more was "
            f"needed, when {format_size(oom.reserved_bytes)} was reserved and "
            f"{format_size(oom.allocated_bytes)} of it in use{_after_oom(result)}."
        )
    if result.matches_recording is False and result.first_difference is not None:
        difference = result.first_difference
        yield (
            f"Differs from the recording at event {difference.event}: recorded "
            f"{_entry(difference.recorded)}, replayed {_entry(difference.replayed)}."
        )


def _after_oom(result: ReplayResult) -> str:
    return "" if result.fits else "; what the program does after this failure is not known"


def _entry(entry: tuple[str, int, int] | None) -> str:
    return "nothing" if entry is None else f"{entry[0]} {entry[1]:#x} {format_size(entry[2])}"
