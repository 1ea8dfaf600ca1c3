"""`plimsoll gpus`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.json_text import json_line
from plimsoll.base.layout import table
from plimsoll.base.units import format_size
from plimsoll.cli.terminal import show

if TYPE_CHECKING:
    from plimsoll.engine.gpus.profiles import GpuProfile

_HEADS = ("name", "memory", "bandwidth", "bf16", "compute", "context", "full name", "measured")
_OPTIONAL = ("context", "compute", "bf16", "bandwidth", "full name")
"""The columns that are left out on a narrow terminal, in this order."""


def gpus(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="List only cards whose names contain this text, as in 4090."
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each card, one on each line.")
    ] = False,
) -> None:
    """List the cards that can be simulated, by the names that --gpu and --simulate take."""
    from plimsoll.engine.gpus.profiles import gpu_profiles

    profiles = gpu_profiles(name)
    if as_json:
        for profile in profiles:
            figures = asdict(profile) | {
                "convolutions": len(profile.convolutions),
                "searches": len(profile.searches),
            }
            print(json_line(figures))
        return
    rows = [_HEADS, *map(_row, profiles)]

    def lines(width: int | None) -> str:
        names = ("measured", "full name", "name")
        return "\n".join(table(rows, width=width, names=names, optional=_OPTIONAL))

    show(lines)


def _row(profile: GpuProfile) -> tuple[str, ...]:
    major, minor = profile.compute_capability
    return (
        profile.name,
        format_size(profile.total_bytes),
        f"{profile.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s",
        f"{profile.tensor_flops / 1e12:,.0f} TFLOPS",
        f"{major}.{minor}",
        format_size(profile.context_bytes),
        profile.full_name,
        profile.measured or ("by the project" if profile.context_measured else ""),
    )
