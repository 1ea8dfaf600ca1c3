"""`plimsoll top`."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.cli.terminal import console
from plimsoll.errors import InputError
from plimsoll.json_text import json_line

if TYPE_CHECKING:
    from plimsoll.top import Machine
    from plimsoll.top.process_table import SortKey

_WIDTH_OF_FILES = 120


def top(
    once: Annotated[bool, typer.Option("--once", help="Print what there is now and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print it once, as one JSON object.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(help="Between two looks, in seconds; 1 unless it is given."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="driver (unless it is given), allocated, cached, fragments, program, pid or gpu."
        ),
    ] = None,
) -> None:
    """Watch the memory of every GPU and process.

    Of processes that plimsoll runs in, the driver's number is taken apart into context, allocated,
    cached and fragments; of others there is what NVML knows. Simulated GPUs are shown too.
    """
    from plimsoll.top import Watch
    from plimsoll.top.process_table import SORT_KEYS

    if sort is not None and sort not in SORT_KEYS:
        raise InputError(f"unknown sort key {sort!r}; there are {', '.join(SORT_KEYS)}")
    if interval is not None and not 0.1 <= interval <= 3600:
        raise InputError(f"an interval lies within 0.1 and 3600 seconds, not {interval:g}")
    if as_json and sort is not None:
        raise InputError("--json does not sort: leave --sort out, or --json")
    looks_once = as_json or once
    if looks_once and interval is not None:
        option = "--json" if as_json else "--once"
        raise InputError(f"{option} looks once: leave --interval out, or {option}")
    has_terminal = all(end is not None and end.isatty() for end in (sys.stdin, sys.stdout))
    if interval is not None and not has_terminal:
        raise InputError("here is no terminal to show anything on again and again: use --once")
    watch = Watch()
    if as_json:
        print(json_line(watch.look().to_dict()))
    elif once or not has_terminal:
        _print(watch.look(), sort or "driver")
    else:
        from plimsoll.top.app import TopApp

        TopApp(watch.look, interval_seconds=interval or 1.0, sort=sort or "driver").run()


def _print(machine: Machine, sort: SortKey) -> None:
    from plimsoll.top.process_table import Order
    from plimsoll.top.text import render

    # Narrower than other texts, too: it leaves columns out.
    columns = get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_FILES
    view = render(machine, columns, Order(sort))
    console().print(view.text)
    uses = (row.use for row in view.rows if row.use is not None)
    pid = next((use.pid for use in uses if use.counters is not None), None)
    if pid is not None:
        print(f"next: plimsoll explain {pid}", file=sys.stderr)
    else:
        print("next: plimsoll run SCRIPT, and the script is taken apart here", file=sys.stderr)
