"""`plimsoll replay`."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.text import printable
from plimsoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.replay import ReplayResult

# Below this a progress bar would only flicker.
_LONG = 3_000_000


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Snapshots (.pickle, .pickle.gz) or traces (.plim, .parquet)."
        ),
    ],
    allocator: Annotated[
        str, typer.Option(help="native (PyTorch's rules), elastic or uncached.", metavar="NAME")
    ] = "native",
    conf: Annotated[
        list[str] | None,
        typer.Option(
            help="A configuration as PYTORCH_CUDA_ALLOC_CONF; give several to compare them. "
            "By default the recorded one.",
            metavar="STRING",
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(help="The most that may be reserved.", metavar="SIZE")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="The memory of the simulated card.", metavar="SIZE")
    ] = None,
    dedicated: Annotated[
        str | None,
        typer.Option(
            help="With --shared: likewise, where requests that find it spent go on in that.",
            metavar="SIZE",
        ),
    ] = None,
    shared: Annotated[
        str | None, typer.Option(help="How much shared memory there is then.", metavar="SIZE")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="Of PyTorch, 2.9 to 2.15; by default the recorded one.", metavar="VERSION"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a replay, one a line.")
    ] = False,
) -> None:
    """Replay memory histories that PyTorch recorded, under any configuration and GPU size.

    A history is what torch.cuda.memory._dump_snapshot() writes after
    torch.cuda.memory._record_memory_history(). Under the recorded configuration every address is
    checked against the recording.
    """
    from plimsoll.replay import replay as run
    from plimsoll.trace import read_recording

    fits = True
    differs = False
    for path in files:
        recording = read_recording(path)
        results: list[ReplayResult] = []
        any_fits = False
        confs: list[str | None] = [*conf] if conf else [None]
        for one in confs:
            with _progress(sum(device.event_count for device in recording.devices)) as progress:
                ran = run(
                    recording,
                    allocator=allocator,  # type: ignore[arg-type]
                    conf=one,
                    limit=limit,
                    gpu_memory=gpu_memory,
                    dedicated=dedicated,
                    shared=shared,
                    version=version,
                    progress=progress,
                )
            results += ran
            any_fits = any_fits or all(result.fits for result in ran)
        ignored = {entry for result in results for entry in result.conf_without_effect}
        for key, reason in sorted(ignored):
            print(printable(f"note: {key} has no effect here: {reason}"), file=sys.stderr)
        if as_json:
            for result in results:
                print(json.dumps(result.to_dict()))
        else:
            _show(results)
        fits = fits and any_fits
        differs = differs or any(result.matches_recording is False for result in results)
    if not as_json and sys.stderr.isatty():
        _hint(files[0], compared=bool(conf and len(conf) > 1))
    if not fits or differs:
        raise typer.Exit(1)


@contextmanager
def _progress(events: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, for histories that take a while and only where somebody watches."""
    if events < _LONG or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=events)
        yield lambda done, _: bar.update(task, completed=done)


def _show(results: list[ReplayResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def text(line: str) -> Text:
        return Text(printable(line))

    # What is not a terminal has no width of its own to fit in.
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    for device in sorted({result.device for result in results}):
        mine = [result for result in results if result.device == device]
        ranked = sorted(mine, key=_rank)
        card = f" ({mine[0].gpu})" if mine[0].gpu else ""
        title = f"{mine[0].file}, device {device}{card}: {_count(mine[0])} replayed"
        console.print(text(title), end="\n\n")
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("configuration", overflow="fold")
        tiers = ("dedicated", "shared") if mine[0].shared else ()
        columns = ("allocated", "reserved", *tiers, "utilization", "retries", "OOM", "driver time")
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for result in ranked:
            table.add_row(*map(text, _row(result)))
        console.print(table)
        console.print()
        for line in _explain(ranked[0]):
            console.print(text(line))
        for result in ranked[1:]:
            for line in _verdict(result):
                console.print(text(f"{_name(result)}: {line}"))
        console.print()


def _rank(result: ReplayResult) -> tuple[bool, int]:
    """Least reserved first; last those that ended early, the one that got furthest first."""
    return not result.fits, result.peak_reserved_bytes if result.fits else -result.events


def _count(result: ReplayResult) -> str:
    return f"{result.events:,} event{'' if result.events == 1 else 's'}"


def _row(result: ReplayResult) -> list[str]:
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
        share = part / max(peak.reserved_bytes, 1)
        yield f"  {format_size(part):>12}  {share:6.1%}  {what}"
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


def _hint(path: Path, *, compared: bool) -> None:
    follow = "--limit 24GiB" if compared else "--conf '' --conf expandable_segments:True"
    print(printable(f"next: plimsoll replay {path} {follow}"), file=sys.stderr)
