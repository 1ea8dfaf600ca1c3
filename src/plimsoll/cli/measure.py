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
            help="Scripts whose convolutions plimsoll measures first. plimsoll then measures the "
            "convolutions of well-known networks.",
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
            "--thorough", help="Measure more convolutions. This takes ten minutes instead of two."
        ),
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            help="The name of this card for the option --gpu of other commands.",
            metavar="NAME",
            show_default="the card's name in PyTorch",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to which plimsoll writes the results.",
            show_default="in your home folder",
            metavar="FILE",
        ),
    ] = None,
    simulate: Annotated[
        str,
        typer.Option(
            help="Measure a simulated card instead, to see what this command prints.", metavar="GPU"
        ),
    ] = "",
) -> None:
    """Measure a card of this machine, so that predictions for that card rely less on estimates.

    No other process may use the card during the measurement. The card's clocks and settings stay as
    they are.
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
