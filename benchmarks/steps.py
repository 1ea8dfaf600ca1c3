"""Measures the step times of scripts on a GPU, and compares them with a simulated GPU's clock.

    python benchmarks/steps.py measure FOLDER [--only gpt,vit] [--results FOLDER]
    python benchmarks/steps.py compare FOLDER [--only gpt,vit] [--gpu H200]

FOLDER holds scripts NAME.py with a function `main(steps)`. The scripts of benchmarks/steps and
their variants run too. CUDA events measure a step, from one `backward` to the next or over one call
of `generate`. `measure` writes steps.json, which has each script's step times. With --profiled it
adds the number of calls of each operation and the time of its kernels. `compare` runs the same
scripts on a simulated GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import training

HERE = Path(__file__).parent
RESULTS = HERE / "results"
OWN = ("gpt", "vit", "unet", "lstm", "t5", "dcgan", "clicks", "depthwise")
PAIRS: list[tuple[str, str]] = [
    ("gpt batch=8", "gpt batch=16"),
    ("gpt precision=fp32", "gpt precision=bf16"),
    ("gpt precision=fp32", "gpt precision=tf32"),
    ("gpt precision=bf16 batch=16 fused=True", "gpt precision=bf16 batch=16 fused=False"),
    ("gpt precision=bf16 batch=16 recompute=False", "gpt precision=bf16 batch=16 recompute=True"),
    (
        "gpt precision=bf16 batch=4 length=2048",
        "gpt precision=bf16 batch=4 length=2048 fused=False",
    ),
    ("vit amp=True", "vit amp=False"),
    ("depthwise channels_last=True", "depthwise channels_last=False"),
    ("unet channels_last=False", "unet channels_last=True"),
    ("unet batch=4", "unet batch=16"),
]
"""Each pair is one script with two choices that a user compares, such as two precisions."""
TIMEOUT_SECONDS = 500
STEPS = {"gpt2_adamw": 12, "mixtral_moe": 12, "resnet_amp": 12, "prefetch_streams": 30}


def parse(name: str) -> tuple[str, dict[str, Any]]:
    """Splits a name such as "gpt batch=8 fused=True" into the script and its arguments."""
    script, *words = name.split()
    options: dict[str, Any] = {}
    for word in words:
        key, text = word.split("=")
        options[key] = text == "True" if text in ("True", "False") else text
        with contextlib.suppress(ValueError):
            options[key] = int(text)
    return script, options


def run_here(path: Path, options: dict[str, Any], *, profiled: bool) -> dict[str, Any]:
    """Runs a script in this process. Returns its step times, CPU seconds and peak memory.

    With `profiled`, the result also has the number of calls and the GPU time of each operation.
    """
    import torch

    torch.cuda.init()
    main = training.load_main(path)
    if path.stem in STEPS:
        options = {next(iter(inspect.signature(main).parameters)): STEPS[path.stem], **options}
    watched = training.Steps(torch)
    watched.watch_training()
    if "generate" in path.read_text():
        watched.watch_generation()
    begin = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        if profiled:
            kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=kinds) as profiler:
                main(**options)
        else:
            main(**options)
    torch.cuda.synchronize()
    spent = time.process_time() - begin
    found: dict[str, Any] = {
        "step_ms": watched.milliseconds(),
        "steps": len(watched._marks) + 1,
        "process_s": spent,
        "peak_allocated": torch.cuda.max_memory_allocated(),
    }
    if profiled:
        rows = [
            (event.key, event.count, event.self_device_time_total)
            for event in profiler.key_averages()
        ]
        found["operations"] = [
            [key, count, round(us, 1)]
            for key, count, us in sorted(rows, key=lambda row: -row[2])
            if us or key.startswith(("aten::", "cudaLaunch", "cudaMemcpy", "cudaStream"))
        ][:150]
    return found


def run_apart(name: str, folder: Path, *, profiled: bool, gpu: str = "") -> dict[str, Any]:
    """Runs a script in a process of its own, on a simulated GPU if one is named."""
    script, _ = parse(name)
    path = HERE / "steps" / f"{script}.py"
    if script not in OWN:
        path = folder / f"{script}.py"
    command = [__file__, *(["--"] if gpu else []), "here", str(path), "--name", name]
    if profiled:
        command += ["--profiled"]
    python = [sys.executable]
    if gpu:
        python += ["-m", "plimsoll", "run", "--simulate", gpu, "--values", "none"]
    done = subprocess.run(
        python + command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def names_of(folder: Path, only: str) -> list[str]:
    """Returns the names of all scripts and variants, or of the selected ones."""
    every = [*sorted(path.stem for path in folder.glob("*.py")), *OWN]
    for pair in PAIRS:
        every += [name for name in pair if name not in every]
    wanted = set(only.split(",")) if only else None
    return [n for n in every if wanted is None or n in wanted or n.split()[0] in wanted]


def measure(folder: Path, only: str, results: Path, *, profiled: bool) -> None:
    """Runs each selected script on a GPU, and saves the measurements in steps.json."""
    import torch

    path = results / "steps.json"
    rows: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in names_of(folder, only):
        runs = [run_apart(name, folder, profiled=False) for _ in range(1 if " " in name else 2)]
        row = dict(runs[0])
        if profiled and " " not in name and name != "llama_generate":
            row = run_apart(name, folder, profiled=True)
        row["profiled_step_ms"] = row.pop("step_ms", [])
        row["step_ms"] = [statistics.median(run["step_ms"]) for run in runs if run.get("step_ms")]
        row["process_s"] = [run.get("process_s") for run in runs]
        rows[name] = row
        print(f"{name:50} {row['step_ms']} {row.get('error', '')}", flush=True)
        path.write_text(json.dumps(rows))


def compare(folder: Path, only: str, gpu: str, results: Path) -> None:
    """Runs each measured script on a simulated GPU. Prints measured and simulated step times."""
    rows = json.loads((results / "steps.json").read_text())
    errors = []
    for name in names_of(folder, only):
        if not rows.get(name, {}).get("step_ms"):
            continue
        measured = statistics.median(rows[name]["step_ms"])
        found = run_apart(name, folder, profiled=False, gpu=gpu)
        if "error" in found:
            print(f"{name:55} {found['error']}")
            continue
        predicted = statistics.median(found["step_ms"])
        if " " not in name:
            errors.append(abs(predicted / measured - 1))
        print(
            f"{name:55} {measured:9.2f} ms, predicted {predicted:9.2f}, "
            f"{predicted / measured - 1:+.1%}",
            flush=True,
        )
    print(f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare", "here"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--profiled", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.what == "here":
        print(json.dumps(run_here(chosen.folder, parse(chosen.name)[1], profiled=chosen.profiled)))
    elif chosen.what == "measure":
        measure(chosen.folder, chosen.only, chosen.results, profiled=chosen.profiled)
    else:
        compare(chosen.folder, chosen.only, chosen.gpu or "H200", chosen.results)


if __name__ == "__main__":
    main()
