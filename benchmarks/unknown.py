"""Measures and predicts scripts whose tensor sizes depend on random numbers or data.

    python benchmarks/unknown.py [FOLDER] [--gpu NAME]

Each script runs once on the GPU, and plimsoll predicts its peaks on the named card. A prediction
has a range, because plimsoll does not know the values of the data. The printed figures are in MiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from plimsoll.base.units import MiB
from plimsoll.prediction.predict import predict

_RUN = """
import json, runpy, sys
import torch
runpy.run_path(sys.argv[1])
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""


def measured(script: Path) -> tuple[int, int]:
    """Returns the peaks of allocated and reserved bytes of a run on the GPU."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(script)], capture_output=True, text=True, check=True
    )
    allocated, reserved = json.loads(done.stdout.splitlines()[-1])
    return allocated, reserved


def row(of: int, predicted: int, bounds: tuple[int, int] | None) -> str:
    """Returns the line of one peak: measured, predicted, difference and range."""
    said = f"{of / MiB:9.1f} {predicted / MiB:9.1f} {predicted / of - 1:+8.2%}"
    if bounds is None:
        return f"{said} {'':>17}   "
    inside = "in" if bounds[0] <= of <= bounds[1] else "OUT"
    return f"{said} {bounds[0] / MiB:8.1f} {bounds[1] / MiB:8.1f} {inside:3}"


def main() -> None:
    """Prints a line for each script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "unknown")
    parser.add_argument("--gpu", default="H200")
    given = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    head = f"{'measured':>9} {'predicted':>9} {'':>8} {'range':>17} {'':3}"
    print(f"{'':16} allocated{head}  reserved{head}")
    for script in sorted(given.folder.glob("*.py")):
        allocated, reserved = measured(script)
        found = predict(script, gpu=given.gpu)
        first = row(allocated, found.peak_allocated_bytes, found.peak_allocated_range_bytes)
        second = row(reserved, found.peak_reserved_bytes, found.peak_reserved_range_bytes)
        print(f"{script.stem:16}          {first}          {second}", flush=True)


if __name__ == "__main__":
    main()
