"""Measures the peaks of compiled scripts on a GPU, and compares them with predictions.

    python benchmarks/compiled.py measure [--only gpt2,llama_checkpointed] [--results FOLDER]
    python benchmarks/compiled.py compare [--only gpt2] [--gpu H200] [--results FOLDER]

`--scripts FOLDER` runs the scripts of that folder instead of those of benchmarks/compiled.

Each script runs twice, compiled and eagerly, each time in a process of its own and with empty
compiler caches. `measure` writes compiled.json with the peaks of each run. For a compiled run the
file also has the requests (positive sizes, in bytes) and frees (negative sizes) of the last step,
and the large requests and frees of the first step. `compare` runs the scripts on a simulated GPU
and prints the predictions beside the measurements. A script has a function `main(steps, compile,
on_step)`, which calls `on_step` after each step.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = HERE / "compiled"
RESULTS = HERE / "results"
MODES = ("compiled", "eager")
TIMEOUT_SECONDS = 400
LARGE = 1 << 20
"""Bytes. For the first step, `run_here` lists only requests and frees of at least this size."""


def run_here(path: Path, *, compiled: bool) -> dict[str, Any]:
    """Runs a script in this process, and returns its peaks and the requests of its steps."""
    import torch

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    steps = inspect.signature(script.main).parameters["steps"].default
    memory = torch.cuda.memory
    found: dict[str, Any] = {"allocated": [], "reserved": [], "held": []}

    def history() -> list[int]:
        events = memory._snapshot()["device_traces"][0]
        memory._record_memory_history(None)
        signs = {"alloc": 1, "free_requested": -1}
        return [signs[e["action"]] * e["size"] for e in events if e["action"] in signs]

    def record() -> None:
        memory._record_memory_history("all", context=None, max_entries=200_000)

    def on_step(step: int) -> None:
        torch.cuda.synchronize()
        found["allocated"].append(torch.cuda.max_memory_allocated())
        found["reserved"].append(torch.cuda.max_memory_reserved())
        found["held"].append(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        if step == 0 and compiled:
            found["first"] = [size for size in history() if abs(size) >= LARGE]
        if step == steps - 1:
            found["last"] = history()
            found["events"] = len(found["last"])
        if step == steps - 2:
            record()

    if compiled:
        record()
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        script.main(compile=compiled, on_step=on_step)
    found["seconds"] = round(time.perf_counter() - began, 1)
    found["peak_allocated"] = max(found["allocated"])
    found["peak_reserved"] = max(found["reserved"])
    if not compiled:
        del found["last"]
    else:
        counters = torch._dynamo.utils.counters
        found["counters"] = {kind: dict(counters[kind]) for kind in ("stats", "inductor")}
    return found


def run_apart(name: str, mode: str, scripts: Path, gpu: str = "") -> dict[str, Any]:
    """Runs a script in a process of its own, on a simulated GPU if one is named."""
    command = [__file__, *(["--"] if gpu else []), "here", "--only", name, "--mode", mode]
    command += ["--scripts", str(scripts)]
    python = [sys.executable, *(["-m", "plimsoll", "run", "--simulate", gpu] if gpu else [])]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        caches = {} if gpu else {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        try:
            done = subprocess.run(
                python + command,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_SECONDS,
                env={**os.environ, **caches},
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {TIMEOUT_SECONDS} s"}
    if done.returncode != 0:
        return {"error": "\n".join(done.stderr.strip().splitlines()[-12:])}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def names_of(only: str, scripts: Path) -> list[str]:
    """Returns the names of all scripts, or of the selected ones."""
    return only.split(",") if only else sorted(path.stem for path in scripts.glob("*.py"))


def measure(only: str, scripts: Path, results: Path, jobs: int) -> None:
    """Measures scripts on a GPU, up to `jobs` runs at a time.

    Each run is a process of its own, which counts only its own memory.
    """
    import torch

    path = results / "compiled.json"
    rows: dict[str, Any] = json.loads(path.read_text()) if only and path.exists() else {}
    rows |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with ThreadPoolExecutor(jobs) as pool:
        runs = {
            (name, mode): pool.submit(run_apart, name, mode, scripts)
            for name in names_of(only, scripts)
            for mode in MODES
        }
        for (name, mode), run in runs.items():
            row = run.result()
            rows.setdefault(name, {})[mode] = row
            print(f"{name:20} {mode:9} {_shown(row)}", flush=True)
            path.write_text(json.dumps(rows, separators=(",", ":")))


def _shown(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    mib = 1 << 20
    return (
        f"allocated {row['peak_allocated'] / mib:9.2f}  reserved {row['peak_reserved'] / mib:8.0f} "
        f"MiB  last step {row['events']:5} events  {row['seconds']:6.1f} s"
    )


def compare(only: str, scripts: Path, gpu: str, results: Path) -> None:
    """Compares predictions with the measurements."""
    path = results / "compiled.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    print(f"measured: {rows.get('gpu')}, PyTorch {rows.get('torch')}")
    for name in names_of(only, scripts):
        for mode in MODES:
            found = run_apart(name, mode, scripts, gpu)
            print(f"{name:20} {mode:9} {_shown(found)}", flush=True)
            row = rows.get(name, {}).get(mode, {"error": "not measured"})
            if "error" in found or "error" in row:
                print(f"{'':30} {_shown(row)}")
                continue
            errors = [found[key] / row[key] - 1 for key in ("peak_allocated", "peak_reserved")]
            print(
                f"{'':22}measured {_shown(row)}\n{'':22}allocated {errors[0]:+.2%}  "
                f"reserved {errors[1]:+.2%}  {_alike(found, row)}",
                flush=True,
            )


def _alike(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Compares the requests and frees of both runs' last steps. Returns the result as text."""
    if "last" not in one or "last" not in other:
        return ""
    if one["last"] == other["last"]:
        return "the last step is the same"
    match = difflib.SequenceMatcher(None, one["last"], other["last"], autojunk=False)
    return f"of the last step {match.ratio():.1%} is the same"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare", "here"])
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--mode", choices=MODES, default="compiled")
    parser.add_argument("--jobs", type=int, default=3, help="scripts at a time on the GPU")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.what == "here":
        path = chosen.scripts / f"{chosen.only}.py"
        print(json.dumps(run_here(path, compiled=chosen.mode == "compiled")))
    elif chosen.what == "measure":
        measure(chosen.only, chosen.scripts, chosen.results, chosen.jobs)
    else:
        compare(chosen.only, chosen.scripts, chosen.gpu, chosen.results)


if __name__ == "__main__":
    main()
