"""`plimsoll run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from plimsoll.errors import InputError


def run(
    script: Annotated[Path, typer.Argument(help="A Python script that uses CUDA.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's arguments.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="GPU", help="The card to simulate, such as H100.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="How many of them.")] = 1,
    driver: Annotated[str, typer.Option(help="linux, or wddm (Windows).")] = "linux",
    conf: Annotated[str, typer.Option(help="As PYTORCH_CUDA_ALLOC_CONF.")] = "",
    allocator: Annotated[str, typer.Option(help="native or uncached.")] = "native",
    host_memory: Annotated[
        str | None, typer.Option(help="Of the simulated machine, such as 64GiB.")
    ] = None,
) -> None:
    """Run a script on a simulated GPU; its output and exit status are its own."""
    from plimsoll.predict.predict import make_request, run_child

    if simulate is None:
        raise InputError("name the card to simulate, such as --simulate H100")
    request = make_request(
        script, arguments or [], gpu=simulate, gpus=gpus, driver=driver, conf=conf,
        allocator=allocator, host_memory=host_memory,
    )  # fmt: skip
    sys.exit(run_child(request))
