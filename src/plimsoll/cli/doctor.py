"""`plimsoll doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from plimsoll.base.json_text import json_line


def doctor(
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="First build the libraries that need this PyTorch, such as for a container image.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what does not work here, with the command that mends it, and what does.

    plimsoll tries what it says works. Exit status: 0 predict works here; 1 it does not.
    """
    from plimsoll.integrations.diagnosis.diagnose import build_libraries
    from plimsoll.integrations.diagnosis.diagnose import doctor as diagnose

    if build:
        build_libraries()
    found = diagnose()
    print(json_line(found.to_dict()) if as_json else found)
    if not found.predicts:
        raise typer.Exit(1)
