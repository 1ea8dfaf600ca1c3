"""`plimsoll fit`."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def fit(
    script: Annotated[Path, typer.Argument(help="A Python script that uses CUDA.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's arguments.")
    ] = None,
    vary: Annotated[
        str, typer.Option(help="The argument to vary, such as --vary=--batch-size.")
    ] = "--batch-size",
    gpu: Annotated[
        list[str] | None, typer.Option(help="A card; several are answered each.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="How many of them.")] = 1,
    start: Annotated[int, typer.Option(help="The value to begin with.")] = 1,
    conf: Annotated[str, typer.Option(help="As PYTORCH_CUDA_ALLOC_CONF.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One object a card, one a line.")] = False,
) -> None:
    """Find the largest value of an argument with which a script fits a card.

    Each value is a prediction of its own. Exit status 1: not even 1 fits.
    """
    from plimsoll.predict import fit as run

    any_fails = False
    for name in gpu or ["H100"]:
        with _progress(name, vary) as progress:
            found = run(
                script, vary, arguments or [], gpu=name, gpus=gpus, start=start, conf=conf,
                progress=progress,
            )  # fmt: skip
        any_fails = any_fails or found.largest is None
        if as_json:
            print(json.dumps(found.to_dict()))
            continue
        if found.largest is None:
            print(f"{found.gpu}: not even {vary} 1 fits")
        else:
            print(f"{found.gpu}: {vary} {found.largest}")
        for value, fits, used in found.curve:
            print(f"  {value:>8}  {format_size(used):>12}  {'fits' if fits else 'does not fit'}")
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
