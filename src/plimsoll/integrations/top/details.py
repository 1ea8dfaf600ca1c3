"""Describes the selected GPU or process in detail."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.layout import folded
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_duration, format_size
from plimsoll.integrations.top.bars import bar, gpu_parts, graph, most_of_each
from plimsoll.integrations.top.process_table import pinned, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.integrations.top.history import History
    from plimsoll.integrations.top.model import GpuUse, ProcessUse
    from plimsoll.integrations.top.process_table import Row

_GRAPH_ROWS = 2


def is_spilled(use: ProcessUse) -> bool:
    """Returns whether a process's GPU allocator has reserved host memory.

    NVML does not count such host memory.
    """
    return use.counters is not None and use.counters.shared_bytes > 0


def details(row: Row, width: int, history: History | None = None) -> Text:
    """Returns the details of the selection.

    Args:
        row: The GPU or the process.
        width: The width in characters.
        history: The memory use that earlier refreshes found; without it there is no graph.
    """
    lines = list(_of_gpu(row.gpu, width) if row.use is None else _of_process(row, width))
    if history is not None:
        lines += _graph(row, width, history)
    return Text("\n").join(lines)


def _of_gpu(gpu: GpuUse, width: int) -> Iterator[Text]:
    kind = "simulated GPU" if gpu.is_simulated else "GPU"
    busy = "" if gpu.utilization is None else f", {gpu.utilization:.0%} busy"
    count = format_count(len(gpu.processes), "process", "processes")
    yield from _wrapped(f"{kind} {gpu.label}, {gpu.name}{busy}, {count}", width)
    at_least = "" if gpu.dedicated_used_bytes is not None else "at least "
    dedicated = f"{at_least}{size(gpu.known_bytes)} of {size(gpu.dedicated_total_bytes)}"
    yield _bar_line("dedicated", gpu_parts(gpu), gpu.dedicated_total_bytes, dedicated, width)
    if gpu.shared_total_bytes is not None or gpu.shared_used_bytes:
        shared = f"{size(gpu.shared_used_bytes)} of {size(gpu.shared_total_bytes)}"
        yield _bar_line("shared", [gpu.shared_used_bytes], gpu.shared_total_bytes, shared, width)


def _bar_line(name: str, parts: list[int], total: int | None, figures: str, width: int) -> Text:
    line = Text(f"{name:<10}", no_wrap=True)
    line.append_text(bar(parts, total, width - line.cell_len - len(figures) - 2))
    line.append(figures.rjust(max(width - line.cell_len, 0)))
    return line


def _of_process(row: Row, width: int) -> Iterator[Text]:
    for line in _process_lines(row):
        yield from _wrapped(line, width)


def _process_lines(row: Row) -> Iterator[str]:
    use = row.use
    assert use is not None
    yield f"process {use.pid}, {use.program or 'unknown'}, on GPU {row.gpu.label}"
    if use.process is not None and use.process.place.rank is not None:
        place = use.process.place
        of_all = "" if place.world_size is None else f" of {place.world_size}"
        job = "" if place.job is None else f", job {place.job}"
        yield f"rank {place.rank}{of_all}{job}"
    counters = use.counters
    if counters is None or use.process is None:
        yield "plimsoll does not run in this process, so only the driver's figure is known"
        return
    yield (
        f"driver {size(use.driver_bytes)} = context {size(use.context_bytes)} + reserved "
        f"{size(counters.reserved_bytes)}"
        + (f" - shared {size(counters.shared_bytes)}" if counters.shared_bytes else "")
    )
    if is_spilled(use):
        yield (
            f"shared: {format_size(counters.shared_bytes)} of the reserved memory lies in host "
            f"memory, {format_size(counters.shared_allocated_bytes)} of it in live tensors; the "
            "driver does not count that"
        )
    yield (
        f"reserved = allocated {size(counters.allocated_bytes)} + cached "
        f"{size(counters.cached_bytes)} + fragments {size(counters.fragments_bytes)}"
        + (f" + pending {size(counters.pending_bytes)}" if counters.pending_bytes else "")
    )
    yield (
        f"peak allocated {size(counters.peak_allocated_bytes)}, reserved "
        f"{size(counters.peak_reserved_bytes)}; page-locked {pinned(use)}"
    )
    counts = (
        format_count(counters.num_alloc_retries, "retry", "retries"),
        format_count(counters.num_ooms, "OOM"),
        format_count(counters.num_spills, "spill"),
    )
    yield ", ".join(counts)


def _graph(row: Row, width: int, history: History) -> Iterator[Text]:
    """Yields a line that names a time span, then a graph of the row's memory use in that span."""
    values = history.used(row.key)
    total = row.gpu.dedicated_total_bytes or max(values, default=0)
    seconds = history.seconds(len(values))
    if seconds < 1:
        return
    least, most = format_size(min(values)), format_size(max(values))
    yield from _wrapped(
        f"the last {format_duration(seconds)}: {least} to {most} of {format_size(total)}", width
    )
    columns = most_of_each(values, max(ceil(len(values) / width), 1))
    for line in graph(columns, total, width, _GRAPH_ROWS):
        yield Text(line, "green", no_wrap=True)


def _wrapped(line: str, width: int) -> list[Text]:
    return [Text(part, no_wrap=True) for part in folded(printable(line), width)]
