"""Runs plimsoll's command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def run_plimsoll(
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `plimsoll` with these arguments to its end, and returns its exit status and output.

    Args:
        arguments: The verb, and what follows it.
        folder: The current folder of the process; by default that of the tests.
        environment: Variables to set beside those of the tests.
        seconds: A time limit.
    """
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        timeout=seconds,
    )
