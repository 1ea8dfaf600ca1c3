"""Runs functions of test files as programs, each in a process of its own."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

ROOT = Path(__file__).parents[1]
_Parameters = ParamSpec("_Parameters")


def in_a_process(test: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Makes a test run in a process of its own. `json.dumps` must accept the arguments."""

    @wraps(test)
    def run(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> None:
        command = command_of(test, inspect.signature(test).bind(*arguments, **named).args)
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr

    return run


def command_of(function: Callable[..., None], arguments: Sequence[object]) -> list[str]:
    """Returns the arguments that make a new Python process call `function`.

    That process does not run the decorators of the function.
    """
    file = Path(inspect.getfile(inspect.unwrap(function))).relative_to(ROOT)
    module = ".".join(file.with_suffix("").parts)
    script = str(ROOT / "tests" / "calling.py")
    return [script, module, function.__qualname__, json.dumps(list(arguments))]
