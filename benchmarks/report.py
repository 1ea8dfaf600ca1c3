"""Writes results to their files, and makes the heading of every result."""

from __future__ import annotations

import datetime
import importlib.metadata
import shutil
import subprocess
from pathlib import Path

from machine import machine

RESULTS = Path(__file__).parent / "results"


def heading() -> str:
    """Returns the date, the machine with its GPUs, and the relevant versions."""
    versions = [f"plimsoll {importlib.metadata.version('plimsoll-gpu')}"]
    for package in ("torch", "transformers"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"machine: {machine()}, {_gpus()}\nversions: {', '.join(versions)}; {today}\n"


def _gpus() -> str:
    query = shutil.which("nvidia-smi")
    if query is None:
        return "no GPU"
    command = [query, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return "; ".join(found.splitlines()) or "no GPU"


def save(name: str, text: str, folder: Path = RESULTS) -> None:
    """Writes a result as NAME.txt."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.txt").write_text(text)
