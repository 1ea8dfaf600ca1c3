"""Measures the example scripts of tests/gallery on a GPU, and predicts them.

    python benchmarks/gallery.py measure [--only detection,peft/lora] [--jobs 3] [--record FOLDER]
    python benchmarks/gallery.py compare [--only detection] [--jobs 2]
    python benchmarks/gallery.py table

`measure` runs each script on a GPU in a process of its own, and writes the peaks to
results/gallery.json. It needs only PyTorch and the scripts' libraries. With `--record`, which needs
plimsoll, it also records the runs as FOLDER/AREA.NAME.plim, for `plimsoll predict --check`.
`compare` predicts the scripts for an H200 with the installed PyTorch, prints predictions and
measurements, and writes results/gallery_predicted.json. `table` writes docs/gallery.md from both
files. With `--only`, the results of the other scripts stay in the files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.gallery.bounds import CLOSE, bounds_of, holds  # noqa: E402
from tests.gallery.figures import (  # noqa: E402
    GPU,
    MOST_SECONDS,
    Figures,
    last_lines,
    predicted,
)
from tests.gallery.page import page  # noqa: E402
from tests.gallery.results import RESULTS, Measured, Predicted, short  # noqa: E402
from tests.gallery.scripts import Script, all_scripts  # noqa: E402

PAGE = ROOT / "docs" / "gallery.md"
MIB = 1 << 20


# --- on a GPU -------------------------------------------------------------------------------------


def run_here(path: Path, out: Path) -> None:
    """Runs a script in this process, and writes the peaks of the whole run."""
    import torch

    peaks = {"allocated_bytes": 0, "reserved_bytes": 0, "allocations": 0}

    def keep() -> None:
        if not torch.cuda.is_initialized():
            return
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            for name, key in (
                ("allocated_bytes", "allocated_bytes.all.peak"),
                ("reserved_bytes", "reserved_bytes.all.peak"),
                ("allocations", "allocation.all.allocated"),
            ):
                peaks[name] = max(peaks[name], stats.get(key, 0))

    for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
        if (reset := getattr(torch._C, name, None)) is not None:
            setattr(torch._C, name, _after(keep, reset))
    sys.argv = [str(path)]
    sys.path[:2] = [str(path.parent)]  # replaces the project's folder and this file's folder
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        keep()
        out.write_text(json.dumps(peaks))


def _after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        first()
        return then(*arguments)

    return call


def measured(script: Script, record: Path | None) -> Figures:
    """Measures a script in a new process, in an empty folder."""
    if script.only_simulated:
        return Figures(why_not="only simulated")
    if missing := script.missing():
        return Figures(why_not=f"not installed: {', '.join(missing)}")
    python = [sys.executable]
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
        recording = record.resolve() / f"{script.name.replace('/', '.')}.plim"
        recording.unlink(missing_ok=True)
        python += ["-m", "plimsoll", "run", "--allocator", "torch", "--record", str(recording)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "peaks.json"
        place = Path(folder) / "here"
        caches = {each: str(Path(folder) / each) for each in _CACHES}
        place.mkdir()
        command = [str(Path(__file__).resolve()), "here", str(script.path), str(out)]
        try:
            done = subprocess.run(
                python + command,
                capture_output=True,
                text=True,
                check=False,
                cwd=place,
                timeout=MOST_SECONDS,
                env={**os.environ, **caches},
            )
        except subprocess.TimeoutExpired:
            return Figures(why_not=f"took more than {MOST_SECONDS} s")
        seconds = round(time.perf_counter() - began, 1)
        if done.returncode != 0:
            return Figures(why_not=last_lines(done.stderr), versions=script.versions())
        if not script.ended_well(done.stdout):
            return Figures(why_not=f"did not print {script.last_line!r}")
        peaks = json.loads(out.read_text())
    return Figures(
        allocated_bytes=peaks["allocated_bytes"],
        reserved_bytes=peaks["reserved_bytes"],
        allocations=peaks["allocations"],
        seconds=seconds,
        versions=script.versions(),
    )


_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that name the compilers' cache folders.

Each measured run gets empty folders, because predictions also begin with empty caches.
"""


def measure(scripts: list[Script], results: Path, jobs: int, record: Path | None) -> None:
    """Measures scripts, up to `jobs` at a time. Each process counts only its own memory."""
    import torch

    kept = Measured.read(results)
    kept.gpu, kept.torch = torch.cuda.get_device_name(), torch.__version__
    for script, found in _each(scripts, lambda script: measured(script, record), jobs):
        kept.figures[script.name] = found
        kept.write(results)
        print(f"{script.name:36} {_shown(found)}", flush=True)


# --- on a simulated GPU ---------------------------------------------------------------------------


def compare(scripts: list[Script], gpu: str, results: Path, jobs: int) -> None:
    """Compares predictions with the measurements."""
    torch = importlib.metadata.version("torch")
    truths = Measured.read(results)
    kept = Predicted.read(results)
    mine = kept.figures.setdefault(short(torch), {})
    print(f"measured: {truths.gpu}, PyTorch {truths.torch}; predicted: {gpu}, PyTorch {torch}")
    print(f"{'script':36} {'allocated':>9} {'measured':>9} {'':>8} {'reserved':>9} {'measured':>9}")
    counts = {"predicted": 0, "measured": 0, "close": 0, "held": 0}
    for script, found in _each(scripts, lambda script: predicted(script, gpu), jobs):
        mine[script.name] = found
        kept.write(results)
        truth = truths.of(script.name)
        print(f"{script.name:36} {_beside(found, truth)}", flush=True)
        if found.why_not:
            continue
        counts["predicted"] += 1
        if truth is not None:
            counts["measured"] += 1
            counts["close"] += holds(found, truth, CLOSE)
            counts["held"] += holds(found, truth, bounds_of(script.name, torch, truths.torch))
    print(
        f"{counts['predicted']} of {len(scripts)} predicted; {counts['close']} of"
        f" {counts['measured']} that were measured are within {CLOSE.allocated:.1%} allocated and"
        f" {CLOSE.reserved:.1%} reserved, or inside the range; {counts['held']} within the bounds"
        " of the tests"
    )


def _beside(found: Figures, truth: Figures | None) -> str:
    if found.why_not:
        return found.why_not
    pairs = (
        (found.allocated_bytes, found.allocated_range, truth and truth.allocated_bytes),
        (found.reserved_bytes, found.reserved_range, truth and truth.reserved_bytes),
    )
    texts, spans = [], []
    for value, span, real in pairs:
        measured_text = (
            f"{real / MIB:9.1f} {value / real - 1:+8.2%}" if real else f"{'-':>9} {'':8}"
        )
        texts.append(f"{value / MIB:9.1f} {measured_text}")
        if span is not None:
            inside = "" if not real else " inside" if span[0] <= real <= span[1] else " OUTSIDE"
            spans.append(f"{span[0] / MIB:.1f} to {span[1] / MIB:.1f}{inside}")
    return f"{' '.join(texts)} {found.seconds:6.1f} s  {'; '.join(spans)}".rstrip()


def _shown(found: Figures) -> str:
    if found.why_not:
        return found.why_not
    return (
        f"allocated {found.allocated_bytes / MIB:9.1f}  reserved {found.reserved_bytes / MIB:9.1f}"
        f" MiB  {found.seconds:6.1f} s"
    )


def _each(
    scripts: list[Script], run: Callable[[Script], Figures], jobs: int
) -> Iterator[tuple[Script, Figures]]:
    """Runs scripts, up to `jobs` at a time. When a script ends, yields it and its result."""
    with ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(run, script): script for script in scripts}
        for done in as_completed(runs):
            yield runs[done], done.result()


def main() -> None:
    """Runs the command."""
    if sys.argv[1:2] == ["here"]:
        run_here(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare", "table"])
    parser.add_argument("--only", default="", help="AREA/NAME or AREA, with commas between")
    parser.add_argument("--gpu", default=GPU)
    parser.add_argument("--jobs", type=int, default=2, help="scripts at a time")
    parser.add_argument("--record", type=Path, help="a folder for recordings")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    scripts = all_scripts(chosen.only)
    if chosen.what == "measure":
        measure(scripts, chosen.results, chosen.jobs, chosen.record)
    elif chosen.what == "compare":
        compare(scripts, chosen.gpu, chosen.results, chosen.jobs)
    else:
        text = page(scripts, Measured.read(chosen.results), Predicted.read(chosen.results))
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
