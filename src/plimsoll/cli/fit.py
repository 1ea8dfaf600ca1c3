"""`plimsoll fit`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.cli.options import (
    DEFAULT_GPU,
    Allocator,
    Arguments,
    AtMostEvents,
    Conf,
    Dedicated,
    Driver,
    Gpu,
    Gpus,
    HostMemory,
    KeepWrites,
    Module,
    Nnodes,
    NprocPerNode,
    Policy,
    Script,
    Shared,
    Unknown,
    Values,
)
from plimsoll.json_text import json_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def fit(
    script: Script,
    arguments: Arguments = None,
    module: Module = False,
    vary: Annotated[
        str, typer.Option(help="The argument to vary, such as --vary=--batch-size.")
    ] = "--batch-size",
    start: Annotated[int, typer.Option(help="The value to begin with.")] = 1,
    at_most: Annotated[int | None, typer.Option(help="The largest value to try.")] = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    nproc_per_node: NprocPerNode = None,
    nnodes: Nnodes = 1,
    driver: Driver = "linux",
    conf: Conf = "",
    allocator: Allocator = "native",
    policy: Policy = None,
    dedicated: Dedicated = None,
    shared: Shared = None,
    host_memory: HostMemory = None,
    values: Values = "auto",
    unknown: Unknown = "balanced",
    at_most_events: AtMostEvents = None,
    keep_writes: KeepWrites = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object a card, one a line.")] = False,
) -> None:
    """Find the largest value of an argument with which a script fits a card.

    Each value is a prediction of its own; the script's output is shown only where it fails. Where
    the search ends before a value does not fit, the answer is "at least", and says why.

    Exit status 1: not even 1 fits. 2: bad input, or the script fails.
    """
    from plimsoll.fitting import fit as run
    from plimsoll.prediction.options import Options

    cards = [
        Options(
            name, gpus, driver, conf, allocator, policy, dedicated, shared, host_memory,
            values, unknown, at_most_events, keep_writes, nproc_per_node, nnodes,
        )
        for name in gpu or [DEFAULT_GPU]
    ]  # fmt: skip
    for card in cards:  # what is wrong is said before the first run
        card.request(script, is_module=module)
    any_fails = False
    for card in cards:
        with _progress(card.gpu, vary) as progress:
            found = run(
                script, vary, arguments or [],
                module=module, start=start, at_most=at_most, progress=progress, **asdict(card),
            )  # fmt: skip
        any_fails = any_fails or found.largest is None
        print(json_line(found.to_dict()) if as_json else found)
    if any_fails:
        raise typer.Exit(1)


@contextmanager
def _progress(gpu: str, vary: str) -> Iterator[Callable[[int, bool | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(gpu, total=None)

        def show(value: int, fits: bool | None) -> None:
            state = "" if fits is None else " fits" if fits else " does not fit"
            bar.update(task, description=f"{gpu}: {vary} {value}{state}")

        yield show
