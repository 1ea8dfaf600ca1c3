"""Predicts scripts and compares the predictions with measured runs.

    python benchmarks/predict.py FOLDER [--truth FOLDER] [--gpu NAME]

FOLDER holds scripts NAME.py. The folder of --truth holds NAME.default.json or NAME.json from real
runs, with `max_memory_allocated` and `max_memory_reserved` (or `peak_allocated` and
`peak_reserved`), and the time in `seconds`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

from plimsoll import InputError
from plimsoll.base.errors import ScriptError
from plimsoll.base.units import MiB
from plimsoll.prediction.predict import predict


def truth_of(name: str, folder: Path | None) -> dict[str, float]:
    """Returns a real run's peak bytes and seconds; empty if there is none."""
    for path in (folder / f"{name}.default.json", folder / f"{name}.json") if folder else ():
        if path.exists():
            found = json.loads(path.read_text())
            return {
                "allocated": found.get("max_memory_allocated") or found["peak_allocated"],
                "reserved": found.get("max_memory_reserved") or found["peak_reserved"],
                "seconds": found["seconds"],
            }
    return {}


def main() -> None:
    """Prints a line for each script, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {sys.version.split()[0]}, for one {arguments.gpu}")
    print(f"{'script':26} {'allocated':>21} {'':>8} {'reserved':>21} {'':>8} {'seconds':>15}")
    errors: list[float] = []
    for path in sorted(arguments.folder.glob("*.py")):
        if arguments.only and path.stem not in arguments.only.split(","):
            continue
        began = time.perf_counter()
        try:
            found = predict(path, gpu=arguments.gpu)
        except (InputError, ScriptError) as error:
            print(f"{path.stem:26} {error}")
            continue
        seconds = time.perf_counter() - began
        truth = truth_of(path.stem, arguments.truth)
        line = f"{path.stem:26}"
        for value, key in (
            (found.peak_allocated_bytes, "allocated"),
            (found.peak_reserved_bytes, "reserved"),
        ):
            line += f" {value / MiB:10.1f}"
            if truth:
                off = 100 * (value / truth[key] - 1)
                errors.append(abs(off))
                line += f" {truth[key] / MiB:10.1f} {off:+7.2f}%"
        print(line + f" {seconds:7.1f} {truth.get('seconds', 0):7.1f}", flush=True)
    if errors:
        print(f"median {statistics.median(errors):.3f} %, worst {max(errors):.2f} %")


if __name__ == "__main__":
    main()
