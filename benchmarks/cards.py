"""Measures the memory of programs on one card, and compares it with plimsoll's predictions.

    python benchmarks/cards.py measure
    python benchmarks/cards.py compare [--gpu H100] [--cards FOLDER]

The programs are in benchmarks/cards. `measure` runs each on a GPU without other processes. It
writes PyTorch's peaks and the peak of the card's memory in use to benchmarks/results/cards.json.
`compare` predicts these peaks, and prints the predictions beside the measurements. With --cards it
predicts them once more, with the card files that `plimsoll measure` wrote to FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "cards"
RESULTS = Path(__file__).parent / "results" / "cards.json"
MIB = 1 << 20
_RUN = """
import json, runpy, sys
import torch
runpy.run_path(sys.argv[1], run_name="__main__")
torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info()
outside = total - free - torch.cuda.memory_reserved()
print(json.dumps([
    torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(),
    torch.cuda.max_memory_reserved() + outside,
]))
"""


def programs() -> list[Path]:
    """Returns all programs."""
    return sorted(PROGRAMS.glob("*.py"))


def measure(results: Path) -> None:
    """Runs each program once on the GPU, and writes the program's peaks to the file `results`."""
    import torch

    key = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    kept: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    for program in programs():
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(program)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            print(program.stem, done.stderr.strip().splitlines()[-1], flush=True)
            continue
        kept.setdefault(key, {})[program.stem] = json.loads(done.stdout.splitlines()[-1])
        print(program.stem, kept[key][program.stem], flush=True)
        results.write_text(json.dumps(kept, indent=1) + "\n")


def predicted(program: Path, gpu: str, cards: str) -> Any:
    """Returns what `plimsoll predict` prints for a program. `cards` is a folder of card files."""
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll", "predict", "--gpu", gpu, "--json", str(program)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PLIMSOLL_CARDS": cards},
    )
    if done.returncode == 2:
        sys.exit(f"{program.stem}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(gpu: str, cards: str, results: Path) -> None:
    """Prints a row for each program, in MiB: allocated, reserved, and in use on the card."""
    kept = json.loads(results.read_text()) if results.exists() else {}
    runs = {name: run for key, all_ in kept.items() if gpu in key for name, run in all_.items()}
    figures = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")
    for program in programs():
        found = predicted(program, gpu, "/nonexistent")
        cells = []
        for place, figure in enumerate(figures):
            cells.append(f"{found[figure] / MIB:.1f}")
            span = found.get(figure.replace("_bytes", "_range_bytes"))
            if span:
                cells[-1] += f" ({span[0] / MIB:.1f} to {span[1] / MIB:.1f})"
            if real := runs.get(program.stem):
                off = found[figure] / real[place] - 1
                cells[-1] += f", measured {real[place] / MIB:.1f} {off:+.2%}"
        print(program.stem, "; ".join(cells), flush=True)
        if cards:
            other = predicted(program, gpu, cards)
            off = [f"{other[figure] / found[figure] - 1:+.3%}" for figure in figures]
            print(f"{'':4} with the card's file: {', '.join(off)}", flush=True)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare"])
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--cards", default="", help="a folder of card files")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.what == "measure":
        measure(chosen.results)
    else:
        compare(chosen.gpu, chosen.cards, chosen.results)


if __name__ == "__main__":
    main()
