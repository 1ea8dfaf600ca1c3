"""Measures training jobs of several ranks on GPUs, and predicts them.

    python benchmarks/jobs.py measure [--only ddp_gpt2,experts] [--nproc 2] [--runs 2]
    python benchmarks/jobs.py compare [--only ddp_gpt2] [--nproc 2] [--gpu H200]
    python benchmarks/jobs.py table

The jobs are in benchmarks/jobs. `measure` runs the jobs in several rounds, on --nproc GPUs of this
machine (default: all). Each rank is a process with the environment that torchrun gives. `measure`
needs only PyTorch and transformers, and cards that no other program uses. After each run it writes
results/jobs.json, keyed by the card's name, the versions of PyTorch and NCCL, and the number of
ranks. A job's new results replace its old ones under the same key. Other results stay. `measure`
begins no run after it has worked for --seconds. `compare` predicts the jobs under the installed
PyTorch, and writes results/jobs_predicted.json. It prints each rank's prediction beside what was
measured with the same number of ranks on the card that --gpu names. `table` writes the table of
docs/jobs.md from both files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "benchmarks" / "jobs"
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "jobs.md"
BEGIN, END = "<!-- jobs: begin -->", "<!-- jobs: end -->"
MIB = 1 << 20
MOST_SECONDS = 600
CLOSE = {"allocated_bytes": 0.005, "reserved_bytes": 0.015, "device_used_bytes": 0.02}
"""For each figure, the largest relative error with which a prediction counts as close."""
FITTED = ("ddp_gpt2", "fsdp1_full", "hybrid_mesh", "pipeline_1f1b", "tensor_parallel")
"""The jobs whose measurements may be used to derive the rule for NCCL's memory."""
HELD_OUT = ("checkpoint", "ddp_compressed", "experts", "fsdp2_llama", "sequence_exchange")
"""The jobs that only test the rule for NCCL's memory."""
FIGURES = ("allocated_bytes", "reserved_bytes", "device_used_bytes", "nccl_bytes")

Figures = dict[str, Any]
"""Either one rank's figures by name, or one run of a job.

A run has a list of its ranks' figures under "ranks". A failed run has the reason under "why_not"
instead. If the figure NAME is predicted as a range, NAME_range holds the lowest and the highest
value.
"""


def names(only: str) -> list[str]:
    """Returns the selected jobs; all if none are selected."""
    found = sorted(path.stem for path in JOBS.glob("*.py") if _is_job(path))
    chosen = [name for name in only.split(",") if name] or found
    if unknown := set(chosen) - set(found):
        sys.exit(f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return chosen


def _is_job(path: Path) -> bool:
    return "common.end()" in path.read_text()


# --- on GPUs --------------------------------------------------------------------------------------


def measure(jobs: Sequence[str], nproc: int, runs: int, seconds: float, results: Path) -> None:
    """Measures jobs in `runs` rounds. Each round runs all jobs once."""
    import torch

    began = time.monotonic()
    count = nproc or torch.cuda.device_count()
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    key = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, NCCL {nccl}, {count} ranks"
    found: dict[str, list[Figures]] = {}
    for _ in range(runs):
        for name in jobs:
            left = began + seconds - time.monotonic()
            if left <= 0:
                print(f"{name:20} not run: {seconds:.0f} s are over", flush=True)
                continue
            run = _measured(name, count, min(left + 20, MOST_SECONDS))
            found.setdefault(name, []).append(run)
            kept = _read(results / "jobs.json")
            kept.setdefault(key, {})[name] = found[name]
            _write(results / "jobs.json", kept)
            print(f"{name:20} {_shown(run)}", flush=True)


def _measured(name: str, nproc: int, most_seconds: float) -> Figures:
    """Runs a job once, and returns its ranks' figures or the reason why there are none."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, f"said{rank}.txt") for rank in range(nproc)]
        ranks: list[subprocess.Popen[bytes]] = []
        port = str(_free_port())
        for rank in range(nproc):
            with said[rank].open("wb") as file:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(JOBS / f"{name}.py")],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                        env=_environment({**_place(rank, nproc, port), "JOB_REPORT": folder}),
                    )
                )
        try:
            why_not = _ended(ranks, said, most_seconds)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if why_not:
            return {"why_not": why_not}
        figures = [
            json.loads(Path(folder, f"rank{each}.json").read_text()) for each in range(nproc)
        ]
    return {"ranks": figures, "seconds": round(time.perf_counter() - began, 1)}


def _ended(ranks: Sequence[subprocess.Popen[bytes]], said: Sequence[Path], most: float) -> str:
    """Waits until all ranks have ended, one has failed, or `most` seconds are over.

    Returns why the job failed; "" if all ranks ended well.
    """
    began = time.monotonic()
    while True:
        statuses = [process.poll() for process in ranks]
        for rank, status in enumerate(statuses):
            if status:
                text = _last_lines(said[rank].read_text(errors="replace"))
                return f"rank {rank} ended with status {status}: {text}"
        if all(status == 0 for status in statuses):
            return ""
        if time.monotonic() - began > most:
            return f"took more than {most:.0f} s"
        time.sleep(0.1)


def _place(rank: int, nproc: int, port: str) -> dict[str, str]:
    """Returns the variables that torchrun sets for a rank."""
    return {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
        **{"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# --- on simulated GPUs ----------------------------------------------------------------------------


def compare(jobs: Sequence[str], nproc: int, gpu: str, results: Path) -> None:
    """Predicts jobs, and compares them with the measurements."""
    version = importlib.metadata.version("torch")
    count = nproc or 2
    key = f"{gpu}, PyTorch {version}, {count} ranks"
    truths = _truths(_read(results / "jobs.json"), gpu, count)
    print(f"predicted: {key}; measured: {', '.join(truths) or 'nothing of that card and number'}")
    for name in jobs:
        run = _predicted(name, count, gpu)
        kept = _read(results / "jobs_predicted.json")
        kept.setdefault(key, {})[name] = run
        _write(results / "jobs_predicted.json", kept)
        print(f"{name:20} {_shown(run)}", flush=True)
        for where, measured in truths.items():
            for line in _beside(run, measured.get(name, [])):
                print(f"{'':20} {line}  ({where})")


def _predicted(name: str, nproc: int, gpu: str) -> Figures:
    command = [sys.executable, "-m", "plimsoll", "predict", "--gpu", gpu, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [*command, "--nproc-per-node", str(nproc), str(JOBS / f"{name}.py")],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                timeout=MOST_SECONDS,
                env=_environment({}),
            )
        except subprocess.TimeoutExpired:
            return {"why_not": f"took more than {MOST_SECONDS} s"}
    if done.returncode != 0:
        return {"why_not": _last_lines(done.stderr + done.stdout)}
    found = json.loads(done.stdout.splitlines()[-1])
    ranks: list[Figures] = []
    for use in sorted(found["ranks"], key=lambda use: int(use["rank"])):
        figures = {
            "allocated_bytes": use["peak_allocated_bytes"],
            "reserved_bytes": use["peak_reserved_bytes"],
            "device_used_bytes": use["device_used_bytes"],
            "nccl_bytes": use["nccl_bytes"],
        }
        for figure, name in (
            ("allocated_bytes", "peak_allocated_range_bytes"),
            ("reserved_bytes", "peak_reserved_range_bytes"),
            ("device_used_bytes", "device_used_range_bytes"),
            ("nccl_bytes", "nccl_range_bytes"),
        ):
            if (span := use[name]) is not None:
                figures[f"{figure}_range"] = span
        ranks.append(figures)
    return {
        "ranks": ranks,
        "context_bytes": found["context_bytes"],
        "depends_on_data": _depends_on_data(found["assumptions"]),
        "seconds": round(found["seconds"], 1),
    }


def _depends_on_data(assumptions: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether the prediction says that sizes depend on unknown values."""
    return any("its size depends" in str(each["what"]) for each in assumptions)


# --- comparison with measurements -----------------------------------------------------------------


def _truths(kept: Mapping[str, Any], gpu: str, nproc: int) -> dict[str, dict[str, list[Figures]]]:
    """Returns the part of jobs.json that was measured on the card `gpu` with `nproc` ranks.

    A key names the card, the versions and the number of ranks. Its value has each job's runs.
    """
    return {
        key: jobs
        for key, jobs in kept.items()
        if gpu.split(":")[0] in key.split(",")[0] and key.endswith(f", {nproc} ranks")
    }


def _beside(run: Figures, measured: Sequence[Figures]) -> list[str]:
    """Returns lines that compare each rank's prediction with all measured runs."""
    good = [each for each in measured if "ranks" in each]
    if "ranks" not in run:
        return []
    lines = []
    for rank, figures in enumerate(run["ranks"]):
        cells = []
        for name in FIGURES:
            real = _span([_real(each["ranks"][rank], name, run) for each in good])
            if real is not None:
                cells.append(f"{name.removesuffix('_bytes')} {_held(figures, name, real)}")
        if cells:
            lines.append(f"rank {rank}: {', '.join(cells)}")
    if lines and run["depends_on_data"]:
        lines.append("depends on data")
    return lines


def _real(truth: Figures, name: str, run: Figures) -> int:
    """Returns a measured figure of a rank.

    No measurement shows NCCL's memory alone. For `nccl_bytes`, this function takes the memory
    measured outside PyTorch's allocator, and subtracts the CUDA context predicted in `run`.
    """
    if name == "nccl_bytes":
        return int(truth["outside_bytes"]) - int(run["context_bytes"])
    return int(truth[name])


def _held(figures: Figures, name: str, real: tuple[int, int]) -> str:
    value = figures[name]
    text = f"{_mib(value)} measured {_between(real)}"
    if name in CLOSE and is_close(figures, name, real):
        return text
    span = figures.get(f"{name}_range")
    where = ""
    if span is not None and (real[1] < span[0] or real[0] > span[1]):
        where = f" OUTSIDE {_between(span)}"
    return f"{text} {_off(value, real)}{where}"


def is_close(figures: Figures, name: str, real: tuple[int, int]) -> bool:
    """Returns whether a prediction is close enough to the measurements.

    If the prediction is a range, one close value in it is enough.

    Args:
        figures: The prediction for a rank.
        name: The figure to compare.
        real: The lowest and the highest measurement.
    """
    low, high = figures.get(f"{name}_range") or (figures[name], figures[name])
    return bool(low * (1 - CLOSE[name]) <= real[1] and high * (1 + CLOSE[name]) >= real[0])


def _off(value: int, real: tuple[int, int]) -> str:
    nearest = min(max(value, real[0]), real[1])
    return f"{value / nearest - 1:+.2%}" if nearest else ""


def _span(values: Sequence[int]) -> tuple[int, int] | None:
    return (min(values), max(values)) if values else None


def _between(span: Sequence[int]) -> str:
    low, high = _mib(span[0]), _mib(span[1])
    return low if low == high else f"{low} to {high}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / MIB:.1f}"


def _shown(run: Figures) -> str:
    if "ranks" not in run:
        return str(run["why_not"])
    ranks = [
        f"rank {rank}: "
        + ", ".join(
            f"{name.removesuffix('_bytes')} {_mib(figures[name])}"
            for name in (*FIGURES, "outside_bytes")
            if name in figures
        )
        for rank, figures in enumerate(run["ranks"])
    ]
    return "; ".join([*ranks, f"{run['seconds']:.1f} s"])


# --- the page -------------------------------------------------------------------------------------


def table(results: Path) -> None:
    """Writes the table into docs/jobs.md, between its markers."""
    predicted, measured = _read(results / "jobs_predicted.json"), _read(results / "jobs.json")
    parts = [
        _table_of(key, jobs, measured)
        for key, jobs in sorted(predicted.items(), key=lambda item: _order(item[0]))
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("".join([before, BEGIN, "\n\n", "\n".join(parts), "\n", END, after]))


def _order(key: str) -> tuple[int, str]:
    return int(key.split(" ")[-2]), key


def _table_of(key: str, jobs: Mapping[str, Figures], measured: Mapping[str, Any]) -> str:
    gpu, count = key.split(",")[0], int(key.split(" ")[-2])
    truths = _truths(measured, gpu, count)
    said = "; ".join(truths) if truths else "not measured yet"
    lines = [
        f"Predicted: {key}. Measured: {said}.\n",
        "| job | rank | allocated | measured | reserved | measured | NCCL | measured | on the card "
        "| measured | |",
        "|---" * 11 + "|",
    ]
    for name in sorted(jobs):
        runs = [run for each in truths.values() for run in each.get(name, []) if "ranks" in run]
        lines += _rows(name, jobs[name], runs)
    return "\n".join([*lines, ""])


def _rows(name: str, run: Figures, runs: Sequence[Figures]) -> list[str]:
    """Returns a job's table rows. Ranks with the same figures share a row."""
    link = f"[{name}](../benchmarks/jobs/{name}.py)"
    if "ranks" not in run:
        return [f"| {link} | | {str(run['why_not']).splitlines()[-1]} | | | | | | | | |"]
    notes = [_role(name), "data-dependent" if run["depends_on_data"] else ""]
    note = ", ".join(each for each in notes if each)
    rows: dict[str, list[int]] = {}
    for rank, figures in enumerate(run["ranks"]):
        cells = []
        for each in ("allocated_bytes", "reserved_bytes", "nccl_bytes", "device_used_bytes"):
            real = _span([_real(one["ranks"][rank], each, run) for one in runs])
            span = figures.get(f"{each}_range")
            between = f" ({_between(span)})" if span and span[0] != span[1] else ""
            cells += [_mib(figures[each]) + between, _between(real) if real else "-"]
        rows.setdefault(" | ".join(cells), []).append(rank)
    return [
        f"| {link} | {', '.join(map(str, ranks))} | {cells} | {note} |"
        for cells, ranks in rows.items()
    ]


def _role(name: str) -> str:
    return "fitted" if name in FITTED else "held out" if name in HELD_OUT else ""


# --- files ----------------------------------------------------------------------------------------


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "JOB_REPORT"}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-12:])


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare", "table"])
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--nproc", type=int, default=0, help="ranks")
    parser.add_argument("--runs", type=int, default=3, help="of each job, where it is measured")
    parser.add_argument("--seconds", type=float, default=570, help="beyond which none is begun")
    parser.add_argument("--gpu", default="H200", help="the card that is predicted")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    jobs = names(chosen.only)
    if chosen.what == "measure":
        measure(jobs, chosen.nproc, chosen.runs, chosen.seconds, chosen.results)
    elif chosen.what == "compare":
        compare(jobs, chosen.nproc, chosen.gpu, chosen.results)
    else:
        table(chosen.results)


if __name__ == "__main__":
    main()
