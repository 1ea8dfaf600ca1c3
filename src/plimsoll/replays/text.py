"""Replays in words and as a table."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from plimsoll.printable import printable
from plimsoll.units import format_count, format_size, size_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from plimsoll.replays.parts import ReplayResult

WIDTH = 160
"""Of what is not shown on a terminal: it has no width of its own to fit in."""


def replays_text(results: Sequence[ReplayResult]) -> str:
    """What `show` shows, without colour."""
    from rich.console import Console

    text = StringIO()
    console = Console(
        file=text, soft_wrap=True, width=WIDTH, color_system=None, force_jupyter=False
    )
    show(results, console)
    return text.getvalue().rstrip("\n")


def show(results: Sequence[ReplayResult], console: Console) -> None:
    """A table of each file's and device's replays, best first, and what else to say of them."""
    from rich.table import Table  # late: simulated programs import this module, not rich

    for ranked in best_first(results):
        console.print(_text(title(ranked[0])), end="\n\n")
        table = Table(box=None, pad_edge=False, header_style="bold")
        first, *others = heads(ranked[0])
        table.add_column(first, overflow="fold")
        for name in others:
            table.add_column(name, justify="right", no_wrap=True)
        for result in ranked:
            table.add_row(*map(_text, row(result)))
        console.print(table)
        console.print()
        for line in _explain(ranked[0]):
            console.print(_text(line))
        for result in ranked[1:]:
            for line in _verdict(result):
                console.print(_text(f"{_name(result)}: {line}"))
        console.print()


def best_first(results: Sequence[ReplayResult]) -> Iterator[list[ReplayResult]]:
    """The replays of each device of each file, files as they come."""
    for file in dict.fromkeys(result.file for result in results):
        of_file = [result for result in results if result.file == file]
        for device in sorted({result.device for result in of_file}):
            yield sorted((one for one in of_file if one.device == device), key=_rank)


def title(result: ReplayResult) -> str:
    """What the replays of a device are of."""
    count = format_count(result.events, "event")
    card = f" ({result.gpu})" if result.gpu else ""
    return f"{result.file}, device {result.device}{card}: {count} replayed"


def heads(result: ReplayResult) -> list[str]:
    """The columns of `row`."""
    tiers = ("dedicated", "shared") if result.shared else ()
    figures = ("allocated", "reserved", *tiers, "utilization", "retries", "OOM", "driver time")
    return ["configuration", *figures]


def _text(line: str) -> Text:
    from rich.text import Text

    return Text(printable(line))


def _rank(result: ReplayResult) -> tuple[bool, int]:
    """Least reserved first; last those that ended early, the one that got furthest first."""
    return not result.fits, result.peak_reserved_bytes if result.fits else -result.events


def row(result: ReplayResult) -> list[str]:
    """A replay as a row of the table."""
    shared = result.shared
    tiers = (shared.peak_dedicated_bytes, shared.peak_bytes) if shared else ()
    return [
        _name(result),
        format_size(result.peak_allocated_bytes),
        format_size(result.peak_reserved_bytes),
        *map(format_size, tiers),
        "-" if result.utilization is None else f"{result.utilization:.1%}",
        str(result.num_alloc_retries),
        "no" if result.first_oom_event is None else f"at event {result.first_oom_event}",
        f"{result.driver_seconds * 1e3:.1f} ms",
    ]


def _name(result: ReplayResult) -> str:
    return result.conf or ("default" if result.allocator == "native" else result.allocator)


def _explain(result: ReplayResult) -> Iterator[str]:
    """Why more was reserved than allocated, and what else there is to say of one replay."""
    peak = result.peak
    reserved = format_size(peak.reserved_bytes)
    yield f"At the peak of reserved memory, event {peak.event:,}, {reserved}:"
    for part, what in (
        (peak.requested_bytes, "asked for by the program"),
        (peak.rounding_bytes, "added by rounding requests up"),
        (peak.split_bytes, "free, in segments that are partly in use: it cannot be returned"),
        (peak.cached_bytes, "free, and kept for later requests: empty_cache would return it"),
    ):
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
            f"Frees that wait for other streams depend on timing: done at once or as late as can "
            f"be, they make it {least} to {most}."
        )
    if result.reconstructed_start:
        yield "The history starts late; what was alive before was taken from the final segments."
    if result.matches_recording is True:
        yield "Every address and segment is as recorded."
    yield from _verdict(result)


def _verdict(result: ReplayResult) -> Iterator[str]:
    """What speaks against a replay."""
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
    return "" if result.fits else "; what the program does then is not known"


def _entry(entry: tuple[str, int, int] | None) -> str:
    return "nothing" if entry is None else f"{entry[0]} {entry[1]:#x} {format_size(entry[2])}"
