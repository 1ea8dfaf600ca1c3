"""`plimsoll doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from plimsoll.base.json_text import json_line


def doctor(
    build: Annotated[
        bool,
        typer.Option(
            "--build", help="First build what is compiled against PyTorch once, as an image wants."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Say what does not work here, with the command that mends it, and what does.

    What is ready is tried. Exit status 1: predict does not work here.
    """
    from plimsoll.integrations.diagnosis.diagnose import build_libraries
    from plimsoll.integrations.diagnosis.diagnose import doctor as diagnose

    if build:
        build_libraries()
    found = diagnose()
    print(json_line(found.to_dict()) if as_json else found)
    if not found.predicts:
        raise typer.Exit(1)
