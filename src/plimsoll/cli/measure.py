"""`plimsoll measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plimsoll.cli.progress import Progress


def measure(
    scripts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SCRIPT",
            help="Scripts. plimsoll measures their convolutions first, then those of well-known "
            "networks.",
        ),
    ] = None,
    gpu: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The card's number in nvidia-smi.",
            metavar="N",
            show_default="the first visible card",
        ),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Measure more convolutions, for ten minutes instead of two."
        ),
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            help="The name by which other commands' --gpu finds this card from then on.",
            metavar="NAME",
            show_default="PyTorch's name",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write.", show_default="in your home folder", metavar="FILE"),
    ] = None,
    simulate: Annotated[
        str,
        typer.Option(
            help="Measure a simulated card instead, to see what is printed.", metavar="GPU"
        ),
    ] = "",
) -> None:
    """Measure a card of this machine, so that predictions for it need no guesses.

    No other process may use the card meanwhile. The card's clocks and settings stay as they are.
    """
    from plimsoll.integrations.measuring.measure import measure_card

    with Progress("measuring the card") as progress:
        found = measure_card(
            scripts or [],
            gpu=gpu,
            name=name,
            thorough=thorough,
            simulated=simulate,
            out=out,
            say=lambda line: progress.now(f"measuring {line}"),
        )
    print(found)
