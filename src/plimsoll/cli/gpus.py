"""`plimsoll gpus`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from plimsoll.json_text import json_line
from plimsoll.units import format_size


def gpus(
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a card, one a line, with all its figures.")
    ] = False,
) -> None:
    """List the cards that can be simulated, by the names that --gpu and --simulate take."""
    from plimsoll.gpus import gpu_profiles

    for profile in gpu_profiles():
        if as_json:
            print(json_line(asdict(profile)))
        else:
            print(f"{profile.name:16} {format_size(profile.total_bytes):>12}  {profile.full_name}")
