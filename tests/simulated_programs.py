"""Programs in files, on simulated GPUs, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CARD = "V100-16GB"


def run_program(
    path: Path, *options: str, gpu: str = CARD, stdin: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", "--simulate", gpu, *options, str(path)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        input=stdin,
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )


def summaries(output: str) -> list[tuple[int, int]]:
    """Allocated and reserved MiB, now, by every memory_summary() printed."""
    scale = {"B": 0, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
    rows = re.findall(r"\| (Allocated memory|GPU reserved memory) +\| +(\d+) (\w+)", output)
    values = [round(int(value) * scale[unit]) for _, value, unit in rows]
    return list(zip(values[::2], values[1::2], strict=True))
