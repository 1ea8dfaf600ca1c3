"""Describes the machine that a benchmark runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """Returns the processor, the number of cores and the Python version."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"
