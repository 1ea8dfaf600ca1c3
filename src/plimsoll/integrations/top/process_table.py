"""Lays out the table of processes: a row for each GPU that a process uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from rich.text import Text

from plimsoll.base.printable import printable
from plimsoll.base.units import format_size
from plimsoll.integrations.top.bars import ALLOCATED, CACHED, CONTEXT, FRAGMENTS
from plimsoll.integrations.top.process_tree import process_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plimsoll.integrations.top.model import GpuUse, Machine, ProcessUse

SortKey = Literal["driver", "allocated", "cached", "fragments", "program", "pid", "gpu"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)

_LEAST_PROGRAM = 12
_MOST_PROGRAM = 60
_PID_WIDTH = 8
_GPU_WIDTH = 6  # the least width of the column of GPUs
_MOST_GPU = 24
_UNKNOWN = "-"


@dataclass(frozen=True)
class Row:
    """A selectable row: a GPU, or a process on one.

    Attributes:
        line: The number of the row's line in the text.
        gpu: The GPU.
        use: The process's memory on it; None for the GPU itself.
    """

    line: int
    gpu: GpuUse
    use: ProcessUse | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        """Returns the row's identity: GPU and process, because a process may use several GPUs."""
        return self.gpu.label, None if self.use is None else self.use.pid


@dataclass(frozen=True)
class Order:
    """Which processes the table shows, and how it sorts them.

    Attributes:
        sort: The sort key. The largest sizes come first; names and numbers ascend.
        is_reversed: Whether the order is reversed.
        containing: A text that the program, the process id or the GPU must contain.
        parent_of: A function that returns the parent of a process, to show a tree; None for a list.
        name_of: A function that returns a process's name. The tree needs it for common ancestors,
            such as a job's launcher, that use no GPU themselves.
    """

    sort: SortKey = "driver"
    is_reversed: bool = False
    containing: str = ""
    parent_of: Callable[[int], int | None] | None = None
    name_of: Callable[[int], str | None] = lambda _: None


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    priority: int  # columns with the highest number are left out first
    style: str
    value: Callable[[ProcessUse], str]


def size(value: int | None) -> str:
    """Formats a size; an unknown size is a dash."""
    return _UNKNOWN if value is None else format_size(value)


def pinned(use: ProcessUse) -> str:
    """Formats the page-locked memory of a process."""
    return size(None if use.process is None else use.process.pinned_bytes)


def _of_counters(name: str) -> Callable[[ProcessUse], str]:
    return lambda use: size(None if use.counters is None else getattr(use.counters, name))


def _count(name: str) -> Callable[[ProcessUse], str]:
    return lambda use: _UNKNOWN if use.counters is None else f"{getattr(use.counters, name):,}"


def _allocator(use: ProcessUse) -> str:
    return _UNKNOWN if use.process is None else printable(use.process.allocator)


_COLUMNS = (
    _Column("DRIVER", 11, 0, "", lambda use: size(use.driver_bytes)),
    _Column("CONTEXT", 11, 5, CONTEXT[1], lambda use: size(use.context_bytes)),
    _Column("ALLOCATED", 11, 1, ALLOCATED[1], _of_counters("allocated_bytes")),
    _Column("CACHED", 11, 2, CACHED[1], _of_counters("cached_bytes")),
    _Column("FRAGMENTS", 11, 3, FRAGMENTS[1], _of_counters("fragments_bytes")),
    _Column("SHARED", 11, 4, "", _of_counters("shared_bytes")),
    _Column("PEAK", 11, 6, "", _of_counters("peak_allocated_bytes")),
    _Column("PINNED", 11, 7, "", pinned),
    _Column("RETRIES", 7, 8, "", _count("num_alloc_retries")),
    _Column("OOMS", 5, 9, "", _count("num_ooms")),
    _Column("SPILLS", 7, 10, "", _count("num_spills")),
    _Column("ALLOCATOR", 9, 11, "", _allocator),
)


def process_table(
    machine: Machine, width: int, order: Order, first_line: int
) -> Iterator[tuple[Text, Row | None]]:
    """Yields each line of the table with its `Row`; nothing if no process is shown.

    A line that cannot be selected has None instead of a `Row`.

    Args:
        machine: The machine with the processes.
        width: The width in characters.
        order: Which processes are shown, and how they are sorted.
        first_line: The number that the table's first line has in the whole text.
    """
    rows = _ordered(machine, order)
    if not rows:
        return
    longest = max(len(_short(gpu)) + 1 for gpu in machine.gpus)
    room = _Room(width, min(max(longest, _GPU_WIDTH), _MOST_GPU))
    columns = room.columns()
    yield _heading(room), None
    for line, (before, pid, gpu, use) in enumerate(rows, first_line + 1):
        if use is None or gpu is None:
            name = order.name_of(pid) or "unknown"
            yield _line(room, pid, "", f"{before}{name}", [_UNKNOWN] * len(columns)), None
            continue
        figures = [column.value(use) for column in columns]
        name = f"{before}{_of_rank(use)}{use.program or 'unknown'}"
        yield _line(room, pid, _short(gpu), name, figures), Row(line, gpu, use)


def _ordered(
    machine: Machine, order: Order
) -> list[tuple[str, int, GpuUse | None, ProcessUse | None]]:
    """Returns the table's lines below the heading.

    A line has four parts: the text before the program's name, the process id, the GPU, and the
    process's memory on that GPU. A tree also has lines for processes that use no GPU but whose
    descendants do; their last two parts are None.
    """
    rows = [
        (gpu, use)
        for gpu in machine.gpus
        for use in gpu.processes
        if _is_shown(gpu, use, order.containing.casefold())
    ]
    places = {gpu.label: place for place, gpu in enumerate(machine.gpus)}
    key = _key(order.sort, places)
    rows.sort(key=lambda row: key(*row), reverse=order.is_reversed)
    if order.parent_of is None:
        return [("", use.pid, gpu, use) for gpu, use in rows]
    pids = list(dict.fromkeys(use.pid for _, use in rows))
    shown: list[tuple[str, int, GpuUse | None, ProcessUse | None]] = []
    for branch in process_tree(pids, order.parent_of):
        own = [row for row in rows if row[1].pid == branch.pid]
        shown += [(branch.prefix, branch.pid, *row) for row in own]
        if not own:
            shown.append((branch.prefix, branch.pid, None, None))
    return shown


def _is_shown(gpu: GpuUse, use: ProcessUse, containing: str) -> bool:
    told = (use.program or "", str(use.pid), f"gpu {gpu.label}", gpu.name)
    return not containing or any(containing in each.casefold() for each in told)


def _key(
    sort: SortKey, places: dict[str, int]
) -> Callable[[GpuUse, ProcessUse], tuple[float | str, int, int]]:
    def first(gpu: GpuUse, use: ProcessUse) -> float | str:
        if sort == "pid":
            return use.pid
        if sort == "program":
            return use.program or ""
        if sort == "gpu":
            return places[gpu.label]
        if sort == "driver":
            return -use.known_bytes
        return 0 if use.counters is None else -(getattr(use.counters, f"{sort}_bytes") or 0)

    return lambda gpu, use: (first(gpu, use), use.pid, places[gpu.label])


def _short(gpu: GpuUse) -> str:
    return f"sim {gpu.label.split()[0]}" if gpu.is_simulated else gpu.label


def _of_rank(use: ProcessUse) -> str:
    """Returns a prefix with the rank, because the ranks of a job all have the same program name."""
    rank = None if use.process is None else use.process.place.rank
    return "" if rank is None else f"rank {rank} "


@dataclass(frozen=True)
class _Room:
    """The width of the table and of its column of GPUs, in characters."""

    width: int
    gpu: int

    def columns(self) -> list[_Column]:
        """Returns the columns that fit; the least important are left out."""
        left = self.width - _PID_WIDTH - self.gpu - _LEAST_PROGRAM
        kept = []
        for column in sorted(_COLUMNS, key=lambda column: column.priority):
            left -= column.width + 1
            if left < 0:
                break
            kept.append(column)
        return [column for column in _COLUMNS if column in kept]

    def program(self) -> int:
        """Returns the width of the column of program names."""
        taken = sum(column.width + 1 for column in self.columns())
        return min(self.width - _PID_WIDTH - self.gpu - taken, _MOST_PROGRAM)


def _heading(room: _Room) -> Text:
    name = f"{'PROGRAM':<{room.program()}}"
    line = Text(f"{'PID':>{_PID_WIDTH - 1}} {'GPU':<{room.gpu - 1}} {name}", "underline")
    for column in room.columns():
        line.append(f" {column.title:>{column.width}}")
    return line


def _line(room: _Room, pid: int, gpu: str, name: str, figures: Sequence[str]) -> Text:
    shown = Text(printable(name), no_wrap=True)
    shown.truncate(room.program(), overflow="ellipsis")
    shown.pad_right(room.program() - shown.cell_len)
    label = printable(gpu)[: room.gpu - 1]
    line = Text(f"{pid:>{_PID_WIDTH - 1}} {label:<{room.gpu - 1}} ", no_wrap=True)
    line.append_text(shown)
    for column, figure in zip(room.columns(), figures, strict=True):
        line.append(f" {figure:>{column.width}}", column.style)
    return line
