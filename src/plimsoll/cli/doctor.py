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
            help="First compile plimsoll's libraries for the installed PyTorch, such as in the "
            "build of a container image.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what works on this machine. For what does not, show the command that mends it.

    Exit status: 0 predict works on this machine; 1 predict does not.
    """
    from plimsoll.integrations.diagnosis.diagnose import build_libraries
    from plimsoll.integrations.diagnosis.diagnose import doctor as diagnose

    if build:
        build_libraries()
    found = diagnose()
    print(json_line(found.to_dict()) if as_json else found)
    if not found.predicts:
        raise typer.Exit(1)
