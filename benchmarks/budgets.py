"""Measures the peak of a compiled model for several values of its activation memory budget.

    python benchmarks/budgets.py predict OUT.json [SCRIPT]
    python benchmarks/budgets.py measure OUT.json [SCRIPT]
    python benchmarks/budgets.py table OUT.json

`predict` runs on a simulated GPU. `measure` runs on a real one, with empty caches of the compiler.
Both write their results to OUT.json. PyTorch's issue 197838 reports that the peak may rise again
when the budget gets small.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SCRIPT = Path(__file__).parent / "fit" / "compiled" / "llama.py"
BUDGETS = (1.0, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0)
AT_A_TIME = max(1, min(4, (os.cpu_count() or 1) // 2))


def predicted(script: Path, budget: float) -> int:
    """Returns the peak of allocated bytes on a simulated H200."""
    from plimsoll.prediction.predict import predict

    arguments = ["--compiled", "--budget", str(budget)]
    return predict(script, arguments, gpu="H200").peak_allocated_bytes


def measured(script: Path, budget: float) -> int:
    """Returns the peak of allocated bytes on this machine's GPU."""
    with tempfile.TemporaryDirectory() as caches:
        folders = {"TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton"}
        done = subprocess.run(
            [sys.executable, script, "--compiled", "--budget", str(budget)],
            env=os.environ | folders, check=True, capture_output=True, text=True,
        )  # fmt: skip
    found = re.search(r"peak (\d+)", done.stdout)
    assert found is not None
    return int(found[1])


def main(verb: str, out: Path, script: Path = SCRIPT) -> None:
    """Prints the table of predicted and measured peaks.

    If `verb` is "predict", first predicts the peaks, and writes them to `out`. If it is "measure",
    first measures the peaks, and writes them to `out`.
    """
    found = json.loads(out.read_text()) if out.exists() else {}
    if verb != "table":
        run = {"predict": predicted, "measure": measured}[verb]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            peaks = list(pool.map(lambda budget: run(script, budget), BUDGETS))
        found[verb] = {str(budget): peak for budget, peak in zip(BUDGETS, peaks, strict=True)}
        out.write_text(json.dumps(found, indent=1))
    print(f"{'budget':>8} {'predicted':>12} {'measured':>12}  MiB")
    for budget in map(str, BUDGETS):
        row = [found.get(each, {}).get(budget) for each in ("predict", "measure")]
        cells = ["-" if size is None else f"{size / 2**20:.1f}" for size in row]
        print(f"{budget:>8} {cells[0]:>12} {cells[1]:>12}")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
