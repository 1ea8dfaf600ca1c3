"""`plimsoll top`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.errors import InputError

if TYPE_CHECKING:
    from plimsoll.top import Machine

_WIDTH_OF_FILES = 120


def top(
    once: Annotated[bool, typer.Option("--once", help="Print what there is now and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Likewise, as one JSON object.")] = False,
    interval: Annotated[float, typer.Option(help="Between two looks, in seconds.")] = 1.0,
    sort: Annotated[
        str, typer.Option(help="driver, allocated, cached, fragments, program or pid.")
    ] = "driver",
) -> None:
    """Watch the memory of every GPU and process.

    Of processes that plimsoll runs in, the driver's number is taken apart into context, allocated,
    cached and fragments; of others there is what NVML knows. Simulated GPUs are shown too.
    """
    from plimsoll.top import Watch
    from plimsoll.top.text import SORT_KEYS

    if sort not in SORT_KEYS:
        raise InputError(f"unknown sort key {sort!r}; there are {', '.join(SORT_KEYS)}")
    if not 0.1 <= interval <= 3600:
        raise InputError(f"an interval lies within 0.1 and 3600 seconds, not {interval:g}")
    watch = Watch()
    if as_json:
        print(json.dumps(watch.look().to_dict()))
    elif once or not sys.stdout.isatty():
        _print(watch.look(), sort)
    else:
        from plimsoll.top.app import TopApp

        TopApp(watch.look, interval_seconds=interval, sort=sort).run()


def _print(machine: Machine, sort: str) -> None:
    from rich.console import Console

    from plimsoll.top.text import render

    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    view = render(machine, console.width, sort=sort)  # type: ignore[arg-type]
    console.print(view.text, soft_wrap=True)
    told = next((row.use for row in view.rows if row.use.counters is not None), None)
    if told is not None:
        print(f"next: plimsoll explain {told.pid}", file=sys.stderr)
    else:
        print("next: plimsoll run SCRIPT, and the script is taken apart here", file=sys.stderr)
