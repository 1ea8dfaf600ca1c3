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
            help="First compile plimsoll's libraries for the installed PyTorch. Use this option in "
            "the build of a container image.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check which commands work on this machine, and show how to fix the others.

    Exit status: 0 `plimsoll predict` works on this machine; 1 `plimsoll predict` does not work.
    """
    from plimsoll.integrations.diagnosis.diagnose import build_libraries
    from plimsoll.integrations.diagnosis.diagnose import doctor as diagnose

    if build:
        build_libraries()
    found = diagnose()
    print(json_line(found.to_dict()) if as_json else found)
    if not found.predicts:
        raise typer.Exit(1)
