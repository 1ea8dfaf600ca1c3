"""Gives simulated GPUs to every Python process that a program starts.

It does not matter how the program starts a process, because the process inherits two environment
variables. PYTHONPATH begins with a folder that contains a `sitecustomize`. PLIMSOLL_SIMULATED
names, as JSON, the function that the process calls before it imports PyTorch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ASKED = "PLIMSOLL_SIMULATED"  # as in site/sitecustomize.py
_FOLDER = str(Path(__file__).with_name("site"))


def begin_started_with(begin: Callable[[dict[str, Any]], None], values: dict[str, Any]) -> None:
    """Ensures that each new Python process calls `begin` before it imports PyTorch.

    New processes are those that this process starts later, and the processes that they start.

    Args:
        begin: A top-level function of a module, so that the new process can import it.
        values: The argument of `begin`, which must be expressible in JSON.
    """
    asked = {"module": begin.__module__, "function": begin.__name__, "values": values}
    os.environ[_ASKED] = json.dumps(asked)
    before = os.environ.get("PYTHONPATH", "")
    if _FOLDER not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{_FOLDER}{os.pathsep}{before}" if before else _FOLDER


def is_inherited(environment: Mapping[str, str]) -> bool:
    """Returns whether a Python process started with this environment has simulated GPUs."""
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return bool(environment.get(_ASKED)) and _FOLDER in folders
