"""Runs behaviours in this process. Writes the observations of each behaviour as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.gpu.behaviours import load
from tests.gpu.behaviours.behaviour import Behaviour, UnavailableError
from tests.gpu.behaviours.processes import installed_allocator
from tests.gpu.behaviours.tools import clean

READY = '"ready"'  # the first line that the process writes


def observe(behaviour: Behaviour) -> dict[str, Any]:
    """Runs one program. Returns its observations, or why it was skipped, or how it failed."""
    try:
        if not behaviour.own_process:
            clean()
        # The round trip through JSON gives the values of all processes the same types.
        observed = json.loads(json.dumps(behaviour.program()))
    except UnavailableError as problem:
        return {"skipped": str(problem)}
    except Exception:
        return {"failed": traceback.format_exc()}
    return {"observed": observed}


def main(results: Path, names: list[str]) -> None:
    """Runs the named programs."""
    wanted, installed = os.environ["PLIMSOLL_ALLOCATOR"], installed_allocator()
    if installed != wanted:
        raise SystemExit(f"the allocator in place is {installed}, not {wanted}")
    known = {behaviour.name: behaviour for behaviour in load()}
    with results.open("a") as file:
        file.write(READY + "\n")
        for name in names:
            file.write(json.dumps({"name": name, **observe(known[name])}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
