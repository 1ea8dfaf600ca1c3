"""Lays out a machine's memory as text of any width, for the full screen and for `--once`.

The text has a line for each GPU, and a table with a line for each process on each GPU. `details.py`
describes the selected row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.integrations.top.bars import bar, gpu_parts, graph, legend, most_of_each
from plimsoll.integrations.top.details import is_spilled
from plimsoll.integrations.top.process_table import Order, Row, process_table, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from plimsoll.integrations.top.history import History
    from plimsoll.integrations.top.model import GpuUse, Machine

_LEAST_WIDTH = 40
_LEAST_BAR = 8
_GRAPH_FROM, _GRAPH_WIDTH = 70, 8
_LOOKS_A_COLUMN = 8
_SHARED_FROM, _SHARED_WIDTH = 100, 11
_MAKERS = re.compile(r"^(?:NVIDIA |GeForce |Tesla )+")


@dataclass(frozen=True)
class View:
    """The text of the screen, and its selectable rows.

    Attributes:
        text: The styled text.
        rows: The rows from top to bottom.
    """

    text: Text
    rows: tuple[Row, ...]


def render(
    machine: Machine,
    width: int,
    order: Order | None = None,
    *,
    history: History | None = None,
    selected: tuple[str, int | None] | None = None,
) -> View:
    """Lays out a machine as text.

    Args:
        machine: The machine to show.
        width: The width in characters, at least 40.
        order: Which processes are shown, and how they are sorted; None shows all.
        history: The memory use that earlier refreshes found; without it there are no graphs.
        selected: The key of the selected row.
    """
    width = max(width, _LEAST_WIDTH)
    order = order or Order()
    lines = [_heading(machine, width)]
    rows: list[Row] = []
    names = _names(machine)
    for gpu in machine.gpus:
        rows.append(Row(len(lines), gpu))
        lines.append(_gpu_line(gpu, width, names, history))
    lines += [_silent_line(host, why, width) for host, why in machine.silent_hosts]
    if machine.gpus:
        lines.append(Text())
        table = list(process_table(machine, width, order, len(lines)))
        rows += [row for _, row in table if row is not None]
        lines += [line for line, _ in table] or [_nothing(order, width)]
    for row in rows:
        if row.key == selected:
            lines[row.line] = Text(lines[row.line].plain, "reverse", no_wrap=True)
    notes = [*machine.notes, *_notes(machine)]
    if notes:
        lines += [Text(), *_note_lines(notes, width)]
    if machine.gpus:
        lines += [Text(), *legend(width)]
    return View(Text("\n").join(lines), tuple(rows))


def _silent_line(host: str, why: str, width: int) -> Text:
    return _cut(f"{host} does not answer: {why}", width, "red")


def _heading(machine: Machine, width: int) -> Text:
    """Returns the line of totals over all real GPUs, or over the simulated ones if none is real."""
    if not machine.gpus:
        return _cut("no GPU was found, real or simulated", width, "bold")
    real = [gpu for gpu in machine.gpus if not gpu.is_simulated]
    summed = real or machine.gpus
    used = sum(gpu.known_bytes for gpu in summed)
    total = sum(gpu.dedicated_total_bytes or 0 for gpu in summed)
    shared = sum(gpu.shared_used_bytes for gpu in summed)
    num_hosts = len({gpu.host for gpu in summed})
    hosts = "" if summed[0].host is None else f"{format_count(num_hosts, 'host')}, "
    text = (
        f"{hosts}{format_count(len(summed), 'GPU' if real else 'simulated GPU')}, "
        f"{format_count(machine.num_processes, 'process', 'processes')}: dedicated {size(used)} of "
        f"{size(total)}, shared {size(shared)}"
    )
    return _cut(text, width, "bold")


def _gpu_line(gpu: GpuUse, width: int, names: int, history: History | None) -> Text:
    """Returns a GPU's line: name, bar, figures, and graph of recent use."""
    line = _cut(f"{_name(gpu):<{names}}", min(names, width // 3), "bold")
    line.pad_right(min(names, width // 3) - line.cell_len)
    at_least = "" if gpu.dedicated_used_bytes is not None else "≥"
    figures = f"{at_least}{size(gpu.known_bytes)} of {size(gpu.dedicated_total_bytes)}".rjust(25)
    busy = "" if gpu.utilization is None else f"{gpu.utilization:.0%}"
    figures += f" {busy:>4}"
    if width >= _SHARED_FROM:
        shared = f"{size(gpu.shared_used_bytes):>{_SHARED_WIDTH}} shared"
        figures += shared if gpu.shared_used_bytes else " " * len(shared)
    if history is not None and width >= _GRAPH_FROM and gpu.dedicated_total_bytes:
        values = most_of_each(history.used((gpu.label, None)), _LOOKS_A_COLUMN)
        figures += f" {graph(values, gpu.dedicated_total_bytes, _GRAPH_WIDTH)[0]}"
    room = width - line.cell_len - len(figures) - 1
    if room >= _LEAST_BAR:
        line.append(" ")
        line.append_text(bar(gpu_parts(gpu), gpu.dedicated_total_bytes, room))
    line.append(figures[: width - line.cell_len].rjust(width - line.cell_len))
    return line


def _names(machine: Machine) -> int:
    """Returns the width of the longest GPU name."""
    return max((len(_name(gpu)) for gpu in machine.gpus), default=0)


def _name(gpu: GpuUse) -> str:
    kind = "sim " if gpu.is_simulated else "GPU "
    return f"{kind}{gpu.label} {_MAKERS.sub('', printable(gpu.name))}"


def _nothing(order: Order, width: int) -> Text:
    which = f" with {order.containing!r}" if order.containing else ""
    return _cut(f"no process{which} is known to use a GPU", width, "bright_black")


def _notes(machine: Machine) -> Iterator[str]:
    """Yields notes on unavailable figures, silent processes, and spilled memory."""
    for gpu in machine.gpus:
        kind = "simulated GPU" if gpu.is_simulated else "GPU"
        yield from (f"{kind} {gpu.label}: {note}" for note in gpu.notes)
        for use in gpu.processes:
            if use.silent_seconds is not None:
                place = "" if gpu.host is None else f" on {gpu.host}"
                yield (
                    f"process {use.pid}{place} has said nothing for {use.silent_seconds:.0f} s: it "
                    "is stopped, or busy outside of Python"
                )
            if use.counters is not None and is_spilled(use):
                yield (
                    f"process {use.pid} has spilled {format_size(use.counters.shared_bytes)} into "
                    f"the host's memory, which {kind} {gpu.label}'s driver does not count"
                )


def _note_lines(notes: Iterable[str], width: int) -> list[Text]:
    return [
        Text(line, "italic", no_wrap=True)
        for note in notes
        for line in wrap(printable(f"note: {note}"), width, subsequent_indent="  ")
    ]


def _cut(text: str, width: int, style: str = "") -> Text:
    line = Text(printable(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
