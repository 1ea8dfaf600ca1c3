"""Every Python process that a program starts has simulated GPUs too, however it is started.

The environment carries what that takes: a folder with a `sitecustomize` in front of PYTHONPATH, and
in PLIMSOLL_SIMULATED, as JSON, what a process calls before it imports PyTorch.
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
    """Let every process that this one starts call `begin` before it imports PyTorch.

    Args:
        begin: A function of a module, which the new process imports.
        values: What it is called with, as JSON can hold it.
    """
    asked = {"module": begin.__module__, "function": begin.__name__, "values": values}
    os.environ[_ASKED] = json.dumps(asked)
    before = os.environ.get("PYTHONPATH", "")
    if _FOLDER not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{_FOLDER}{os.pathsep}{before}" if before else _FOLDER


def is_inherited(environment: Mapping[str, str]) -> bool:
    """Whether a Python process that is started with such an environment has simulated GPUs."""
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return bool(environment.get(_ASKED)) and _FOLDER in folders
