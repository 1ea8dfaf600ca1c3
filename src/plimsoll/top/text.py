"""A machine's memory as text of any width: for the full screen and for `--once`.

Every kind of memory has a sign of its own, so that the bars can be read without colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Literal, get_args

from rich.text import Text

from plimsoll.printable import printable
from plimsoll.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from plimsoll.top.model import GpuUse, Machine, ProcessUse

SortKey = Literal["driver", "allocated", "cached", "fragments", "program", "pid"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)

_LEAST_WIDTH = 40
_LEAST_PROGRAM = 12
_MOST_PROGRAM = 60
_UNKNOWN = "-"

# Of a bar: sign, style and name, in the order in which they stand there.
_ALLOCATED = ("█", "green", "allocated")
_CACHED = ("▓", "yellow", "cached")
_FRAGMENTS = ("▒", "red", "fragments")
_CONTEXT = ("#", "blue", "context")
_OTHER = ("=", "magenta", "others")
_FREE = ("·", "bright_black", "free")
_PARTS = (_ALLOCATED, _CACHED, _FRAGMENTS, _CONTEXT, _OTHER, _FREE)


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    priority: int  # the higher, the sooner it is left out where there is no room
    style: str
    value: Callable[[ProcessUse], str]


def _size(value: int | None) -> str:
    return _UNKNOWN if value is None else format_size(value)


def _of_counters(name: str) -> Callable[[ProcessUse], str]:
    return lambda use: _size(None if use.counters is None else getattr(use.counters, name))


def _count(name: str) -> Callable[[ProcessUse], str]:
    return lambda use: _UNKNOWN if use.counters is None else f"{getattr(use.counters, name):,}"


def _pinned(use: ProcessUse) -> str:
    return _size(None if use.process is None else use.process.pinned_bytes)


def _allocator(use: ProcessUse) -> str:
    return _UNKNOWN if use.process is None else printable(use.process.allocator)


_COLUMNS = (
    _Column("DRIVER", 11, 0, "", lambda use: _size(use.driver_bytes)),
    _Column("CONTEXT", 11, 4, _CONTEXT[1], lambda use: _size(use.context_bytes)),
    _Column("ALLOCATED", 11, 1, _ALLOCATED[1], _of_counters("allocated_bytes")),
    _Column("CACHED", 11, 2, _CACHED[1], _of_counters("cached_bytes")),
    _Column("FRAGMENTS", 11, 3, _FRAGMENTS[1], _of_counters("fragments_bytes")),
    _Column("SHARED", 11, 5, "", _of_counters("shared_bytes")),
    _Column("PEAK", 11, 6, "", _of_counters("peak_allocated_bytes")),
    _Column("PINNED", 11, 7, "", _pinned),
    _Column("RETRIES", 7, 8, "", _count("num_alloc_retries")),
    _Column("OOMS", 5, 9, "", _count("num_ooms")),
    _Column("SPILLS", 7, 10, "", _count("num_spills")),
    _Column("ALLOCATOR", 9, 11, "", _allocator),
)
_PID_WIDTH = 8


@dataclass(frozen=True)
class Row:
    """A process in the text: where it stands, and what it is."""

    line: int
    gpu: GpuUse
    use: ProcessUse

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from others: a process may use several GPUs."""
        return self.gpu.label, self.use.pid


@dataclass(frozen=True)
class View:
    """A text and the processes in it.

    Attributes:
        text: With styles.
        rows: From top to bottom.
    """

    text: Text
    rows: tuple[Row, ...]


def render(
    machine: Machine,
    width: int,
    *,
    sort: SortKey = "driver",
    is_reversed: bool = False,
    selected: tuple[str, int] | None = None,
) -> View:
    """Lay a machine out.

    Args:
        machine: What to show.
        width: In letters; below 40 it is taken as 40.
        sort: What processes of a GPU are sorted by: sizes fall, names and numbers rise.
        is_reversed: The other way round.
        selected: The key of the row that is marked.
    """
    width = max(width, _LEAST_WIDTH)
    lines = [_heading(machine, width)]
    rows: list[Row] = []
    for gpu in machine.gpus:
        lines += [Text(), *_gpu_lines(gpu, width)]
        uses = sorted(gpu.processes, key=_order(sort), reverse=is_reversed)
        if uses:
            lines.append(_table_heading(width))
        for use in uses:
            row = Row(len(lines), gpu, use)
            line = _process_line(use, width)
            if row.key == selected:
                line.stylize("reverse")
            rows.append(row)
            lines.append(line)
        if not uses:
            lines.append(_cut("  no process is known to use it", width, "bright_black"))
        lines += _note_lines([*gpu.notes, *_silent(uses)], width, indent="  ")
    if machine.notes:
        lines += [Text(), *_note_lines(machine.notes, width)]
    if machine.gpus:
        lines += [Text(), *_legend(width)]
    return View(Text("\n").join(lines), tuple(rows))


def details(row: Row, width: int) -> Text:
    """What else there is to say of one process, for people."""
    use = row.use
    lines = [f"process {use.pid}, {use.program or 'unknown'}, on GPU {row.gpu.label}"]
    if use.counters is None or use.process is None:
        lines.append("plimsoll does not run in it: only the driver's number is known")
    else:
        counters = use.counters
        lines.append(
            f"driver {_size(use.driver_bytes)} = context {_size(use.context_bytes)} + reserved "
            f"{_size(counters.reserved_bytes)}"
            + (f" - shared {_size(counters.shared_bytes)}" if counters.shared_bytes else "")
        )
        fragments = (
            "fragments -"
            if counters.fragments_bytes is None
            else f"fragments {_size(counters.fragments_bytes)}"
        )
        lines.append(
            f"reserved = allocated {_size(counters.allocated_bytes)} + cached "
            f"{_size(counters.cached_bytes)} + {fragments}"
            + (f" + pending {_size(counters.pending_bytes)}" if counters.pending_bytes else "")
        )
        lines.append(
            f"peak allocated {_size(counters.peak_allocated_bytes)}, reserved "
            f"{_size(counters.peak_reserved_bytes)}; page-locked {_pinned(use)}"
        )
        counts = (
            format_count(counters.num_alloc_retries, "retry", "retries"),
            format_count(counters.num_ooms, "OOM"),
            format_count(counters.num_spills, "spill"),
        )
        lines.append(", ".join(counts))
    return Text("\n".join(part for line in lines for part in wrap(printable(line), width)))


def _order(sort: SortKey) -> Callable[[ProcessUse], tuple[float | str, int]]:
    def size(use: ProcessUse) -> int:
        if sort == "driver":
            return use.known_bytes
        return 0 if use.counters is None else getattr(use.counters, f"{sort}_bytes") or 0

    if sort == "pid":
        return lambda use: (0, use.pid)
    if sort == "program":
        return lambda use: (use.program or "", use.pid)
    return lambda use: (-size(use), use.pid)


# --- the lines -----------------------------------------------------------------------------------


def _cut(text: str, width: int, style: str = "") -> Text:
    line = Text(printable(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _silent(uses: Iterable[ProcessUse]) -> Iterator[str]:
    for use in uses:
        if use.silent_seconds is not None:
            yield (
                f"process {use.pid} has said nothing for {use.silent_seconds:.0f} s: it is "
                "stopped, or busy outside of Python"
            )


def _note_lines(notes: Iterable[str], width: int, indent: str = "") -> list[Text]:
    return [
        Text(line, "italic", no_wrap=True)
        for note in notes
        for line in wrap(
            printable(f"note: {note}"),
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
        )
    ]


def _heading(machine: Machine, width: int) -> Text:
    """The sums; those of simulated GPUs only where there are no real ones."""
    if not machine.gpus:
        return _cut("no GPU is in sight, real or simulated", width, "bold")
    real = [gpu for gpu in machine.gpus if not gpu.is_simulated]
    summed = real or machine.gpus
    used = sum(gpu.known_bytes for gpu in summed)
    total = sum(gpu.dedicated_total_bytes or 0 for gpu in summed)
    shared = sum(gpu.shared_used_bytes for gpu in summed)
    text = (
        f"{format_count(len(summed), 'GPU' if real else 'simulated GPU')}, "
        f"{format_count(len(machine.pids), 'process', 'processes')}: dedicated {_size(used)} of "
        f"{_size(total)}, shared {_size(shared)}"
    )
    return _cut(text, width, "bold")


def _gpu_lines(gpu: GpuUse, width: int) -> list[Text]:
    kind = "simulated GPU" if gpu.is_simulated else "GPU"
    busy = "" if gpu.utilization is None else f"{gpu.utilization:.0%} busy"
    title = _cut(f"{kind} {gpu.label}  {gpu.name}", width - len(busy) - 1, "bold")
    if busy:
        title.append(busy.rjust(width - title.cell_len))
    at_least = "" if gpu.dedicated_used_bytes is not None else "at least "
    dedicated = f"{at_least}{_size(gpu.known_bytes)} of {_size(gpu.dedicated_total_bytes)}"
    lines = [
        title,
        _bar_line("dedicated", _parts(gpu), gpu.dedicated_total_bytes, dedicated, width),
    ]
    if gpu.shared_total_bytes is not None or gpu.shared_used_bytes:
        shared = f"{_size(gpu.shared_used_bytes)} of {_size(gpu.shared_total_bytes)}"
        parts = [gpu.shared_used_bytes, 0, 0, 0, 0]
        lines.append(_bar_line("shared", parts, gpu.shared_total_bytes, shared, width))
    return lines


def _parts(gpu: GpuUse) -> list[int]:
    """What the dedicated memory in use consists of, in the order of `_PARTS`."""
    parts = [0, 0, 0, 0]
    for use in gpu.processes:
        if (counters := use.counters) is None:
            continue
        free = counters.cached_bytes + (counters.fragments_bytes or 0)
        parts[0] += max(counters.dedicated_bytes - free, 0)
        parts[1] += counters.cached_bytes
        parts[2] += counters.fragments_bytes or 0
        parts[3] += use.context_bytes or 0
    return [*parts, max(gpu.known_bytes - sum(parts), 0)]


def _bar_line(name: str, parts: list[int], total: int | None, figures: str, width: int) -> Text:
    line = Text(f"{name:<10}", no_wrap=True)
    room = width - line.cell_len - len(figures) - 2
    if total and room > 0:
        ends = [round(min(end / total, 1) * room) for end in accumulate(parts)]
        for (sign, style, _), (begin, end) in zip(_PARTS, pairwise([0, *ends, room]), strict=True):
            line.append(sign * (end - begin), style)
    line.append(figures.rjust(width - line.cell_len))
    return line


def _columns(width: int) -> list[_Column]:
    """Those that there is room for, the most important first to be taken."""
    left = width - _PID_WIDTH - _LEAST_PROGRAM
    kept = []
    for column in sorted(_COLUMNS, key=lambda column: column.priority):
        left -= column.width + 1
        if left < 0:
            break
        kept.append(column)
    return [column for column in _COLUMNS if column in kept]


def _program_width(width: int) -> int:
    taken = sum(column.width + 1 for column in _columns(width))
    return min(width - _PID_WIDTH - taken, _MOST_PROGRAM)


def _table_heading(width: int) -> Text:
    line = Text(f"{'PID':>{_PID_WIDTH - 1}} {'PROGRAM':<{_program_width(width)}}", "underline")
    for column in _columns(width):
        line.append(f" {column.title:>{column.width}}")
    return line


def _process_line(use: ProcessUse, width: int) -> Text:
    name = _cut(use.program or "unknown", _program_width(width))
    name.pad_right(_program_width(width) - name.cell_len)
    line = Text(f"{use.pid:>{_PID_WIDTH - 1}} ", no_wrap=True)
    line.append_text(name)
    for column in _columns(width):
        line.append(f" {column.value(use):>{column.width}}", column.style)
    return line


def _legend(width: int) -> list[Text]:
    """The signs of the bars, in as many lines as they need."""
    lines = [Text(no_wrap=True)]
    for sign, style, name in _PARTS:
        if lines[-1].cell_len + len(name) + 4 > width:
            lines.append(Text(no_wrap=True))
        lines[-1].append(sign, style)
        lines[-1].append(f" {name}  ")
    for line in lines:
        line.rstrip()
    return lines
