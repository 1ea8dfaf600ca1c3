"""Times training under PyTorch's allocators and plimsoll's, in alternation.

    python benchmarks/training.py FOLDER [--workloads gpt2_adamw,...] [--repetitions 5]
        [--settings torch,expandable,async,elastic,planned,native] [--steps N] [--fraction 0.10]
        [--plans FOLDER]

FOLDER holds scripts NAME.py with a function `main(steps)`. Every run is a process of its own, and
the settings alternate. CUDA events measure a step, from one `backward` to the next or over one call
of `generate`. The step times leave out the first quarter of a run's steps, at most five steps. The
losses are compared, bit for bit, with those of the first setting's first run.

The setting `planned` is the elastic allocator with a plan, a file that has an address for each
large request. The plan of the script NAME.py is the file NAME.json in the folder that `--plans`
names. The command below writes that plan without a GPU. If the constant `STEPS` has a number N for
the script, add `--steps N` to the command:

    plimsoll predict benchmarks/training.py --gpu H100 --write-plan NAME.json -- FOLDER/NAME.py
        --here ""

The table shows how much of the card's memory a program takes. This is the difference between two
readings of `mem_get_info`: one at the end of `main`, while the allocator still holds its cache, and
one after the cache is emptied. So the figure leaves out contexts and the libraries' own memory.
`--fraction 0.10` limits a program, on any card, to 10 % of the memory of an 80 GB H100. Results go
to benchmarks/results/training.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import inspect
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import RESULTS, heading, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

H100_BYTES = 85_017_493_504
"""The total memory of an H100 80GB, as CUDA reports it."""
STEPS = {"gpt2_adamw": 40, "mixtral_moe": 20, "resnet_amp": 20}
"""How many steps these scripts run. Their own defaults are too few for a measurement."""
TIMEOUT_SECONDS = 300
MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """An allocator, and the settings that make a process use it."""

    title: str
    conf: str = ""
    allocator: str = ""  # name of a plimsoll allocator, or ""
    is_planned: bool = False


SETTINGS = {
    "torch": Setting("PyTorch"),
    "expandable": Setting("expandable_segments", conf="expandable_segments:True"),
    "async": Setting("cudaMallocAsync", conf="backend:cudaMallocAsync"),
    "elastic": Setting("plimsoll elastic", allocator="elastic"),
    "planned": Setting("elastic with a plan", allocator="elastic", is_planned=True),
    "native": Setting("plimsoll native", allocator="native"),
}


@dataclass(frozen=True)
class Run:
    """The results of one process.

    Attributes:
        step_ms: The milliseconds of each counted step.
        results: The loss of each step, or a checksum of the generated tokens.
        peak_allocated_bytes: The peak of allocated memory.
        peak_reserved_bytes: The peak of reserved memory, by the allocator's statistics.
        taken_bytes: The memory taken from the card, by the driver's figures.
        retries: How often the allocator emptied its cache to try a request again. `taken_bytes` is
            measured at the end. So if there was a retry, the peak may be higher than `taken_bytes`.
        error: Why `main` failed.
    """

    step_ms: list[float]
    results: list[float]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    taken_bytes: int
    retries: int
    error: str | None


# --- in the process that runs the script ----------------------------------------------------------


class Steps:
    """Records the start, end and result of each step without waiting for the GPU."""

    CAPACITY = 4096

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._marks: list[tuple[Any, Any]] = []
        self._last: Any = None
        self._losses: Any = None
        self._count = 0
        self._results: list[float] = []

    def _now(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def watch_training(self) -> None:
        """Records training. A step ends where `backward` begins, and its result is the loss."""
        tensor = self._torch.Tensor
        backward = tensor.backward

        @functools.wraps(backward)
        def marked(loss: Any, *arguments: Any, **named: Any) -> Any:
            now = self._now()
            if self._last is not None:
                self._marks.append((self._last, now))
            self._last = now
            if self._losses is None:
                self._losses = self._torch.empty(
                    self.CAPACITY, dtype=loss.dtype, device="cpu", pin_memory=True
                )
            self._losses[self._count].copy_(loss.detach(), non_blocking=True)
            self._count += 1
            return backward(loss, *arguments, **named)

        tensor.backward = marked

    def watch_generation(self) -> None:
        """Records generation: a step is one call of `generate`."""
        from transformers.generation.utils import GenerationMixin

        generate = GenerationMixin.generate

        @functools.wraps(generate)
        def marked(*arguments: Any, **named: Any) -> Any:
            begin = self._now()
            tokens = generate(*arguments, **named)
            self._marks.append((begin, self._now()))
            self._results.append(zlib.crc32(tokens.cpu().numpy().tobytes()))
            return tokens

        GenerationMixin.generate = marked

    def results(self) -> list[float]:
        """Returns all losses or checksums; the GPU must be idle."""
        if self._losses is None:
            return self._results
        losses: list[float] = self._losses[: self._count].tolist()
        return losses

    def milliseconds(self) -> list[float]:
        """Returns the times of the counted steps; the GPU must be idle."""
        times = [begin.elapsed_time(end) for begin, end in self._marks]
        return times[min(5, len(times) // 4) :]


def load_main(path: Path) -> Any:
    """Returns the function `main` of a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def card_in_use(torch: Any) -> int:
    """Returns how many bytes of the card's memory all programs together use."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def shared_bytes() -> int:
    """Returns the bytes that plimsoll reserved in host memory."""
    from plimsoll.engine.current import opened_engine

    engine = opened_engine(0)
    return 0 if engine is None else engine.statistics()["shared_reserved_bytes.current"]


def run_watched(
    path: Path,
    steps: int | None,
    limit: int | None,
    around: AbstractContextManager[Any] | None = None,
) -> Run:
    """Runs a script's `main` in this process, inside the context manager `around`.

    The process must not have run another script before, because the result would include that
    script's peaks.
    """
    import torch

    torch.cuda.init()
    if limit is not None:
        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(limit / total)
    main = load_main(path)
    watched = Steps(torch)
    watched.watch_training()
    if "generate" in path.read_text():
        watched.watch_generation()
    arguments = {}
    if steps is not None:
        arguments[next(iter(inspect.signature(main).parameters))] = steps
    error = None
    try:
        with around or contextlib.nullcontext(), contextlib.redirect_stdout(sys.stderr):
            main(**arguments)
    except torch.OutOfMemoryError as failure:
        error = str(failure)
    gc.collect()
    torch.cuda.synchronize()
    held = card_in_use(torch)
    statistics_at_end = torch.cuda.memory_stats()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    taken = held - card_in_use(torch) + torch.cuda.memory_reserved() - shared_bytes()
    return Run(
        step_ms=watched.milliseconds(),
        results=watched.results(),
        peak_allocated_bytes=torch.cuda.max_memory_allocated(),
        peak_reserved_bytes=torch.cuda.max_memory_reserved(),
        taken_bytes=taken,
        retries=statistics_at_end.get("num_alloc_retries", 0),
        error=error,
    )


def run_here(
    path: Path,
    allocator: str,
    steps: int | None,
    limit: int | None,
    plan: str | None = None,
) -> Run:
    """Runs a script in this process under one of plimsoll's allocators, or PyTorch's."""
    if allocator:
        import plimsoll

        plimsoll.install(allocator, plan=plan)  # type: ignore[arg-type]
    return run_watched(path, steps, limit)


# --- in the process that compares -----------------------------------------------------------------


def found_by(command: list[str], title: str, conf: str = "") -> dict[str, Any]:
    """Runs a command with PYTORCH_CUDA_ALLOC_CONF=`conf`. Returns the last JSON that it prints."""
    drop = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PLIMSOLL_ALLOCATOR")
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        sys.exit(f"{title}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_apart(
    path: Path, setting: Setting, steps: int | None, limit: int | None, plans: Path
) -> Run:
    """Runs a script in a process of its own, under a setting."""
    command = [sys.executable, __file__, str(path), "--here", setting.allocator]
    if steps is not None:
        command += ["--steps", str(steps)]
    if limit is not None:
        command += ["--limit", str(limit)]
    if setting.is_planned:
        command += ["--plan", str(plans / f"{path.stem}.json")]
    return Run(**found_by(command, f"{path.name} under {setting.title}", setting.conf))


def largest_difference(results: list[float], wanted: list[float]) -> float:
    """Returns the largest relative difference between the results of two runs, step by step.

    If one run has more results, its last results are ignored.
    """
    return max(
        (abs(a - b) / max(abs(b), 1e-30) for a, b in zip(results, wanted, strict=False)), default=0
    )


def describe(runs: list[Run], wanted: list[float]) -> str:
    """Describes how a setting's runs ended."""
    failed = [run for run in runs if run.error is not None]
    if failed:
        return f"out of memory after {len(failed[0].results)} steps"
    worst = max(largest_difference(run.results, wanted) for run in runs)
    if any(len(run.results) != len(wanted) for run in runs):
        return "PyTorch ended early"
    return "the same" if worst == 0 else f"differ by {worst:.1e}"


def row(setting: Setting, runs: list[Run], first: list[Run]) -> str:
    """Returns a setting's line of the table.

    `first` holds the runs of the setting in the table's first line. The ratios are the step times
    of `runs`, divided by those of `first`.
    """

    def median(of: list[Run], what: Callable[[Run], float]) -> float:
        return statistics.median(what(run) for run in of)

    line = f"{setting.title:20}"
    for what in (
        lambda run: statistics.median(run.step_ms),
        lambda run: statistics.mean(run.step_ms),
    ):
        if all(run.step_ms and run.error is None for run in runs):
            milliseconds = median(runs, what)
            line += f" {milliseconds:9.2f}"
            comparable = all(run.step_ms and run.error is None for run in first)
            line += f" {milliseconds / median(first, what):6.3f}" if comparable else f" {'-':>6}"
        else:
            line += f" {'-':>9} {'-':>6}"
    allocated = median(runs, lambda run: run.peak_allocated_bytes)
    taken = median(runs, lambda run: run.taken_bytes)
    line += f" {allocated / MIB:10.1f}"
    line += f" {median(runs, lambda run: run.peak_reserved_bytes) / MIB:10.1f}"
    line += f" {taken / MIB:10.1f}"
    # A retry empties the cache before `taken_bytes` is measured, so the peak may be higher.
    given_back = any(run.retries for run in runs)
    line += f" {'>=' if given_back else ''}{taken / allocated:.3f}".rjust(9)
    return line + f"  {describe(runs, first[0].results)}"


def compare(
    path: Path,
    settings: list[Setting],
    repetitions: int,
    steps: int | None,
    limit: int | None,
    plans: Path,
) -> str:
    """Runs a script under each setting in turn, and returns the table."""
    if steps is None:
        steps = STEPS.get(path.stem)
    runs: dict[str, list[Run]] = {setting.title: [] for setting in settings}
    for repetition, setting in itertools.product(range(repetitions), settings):
        began = time.perf_counter()
        run = run_apart(path, setting, steps, limit, plans)
        runs[setting.title].append(run)
        seconds = time.perf_counter() - began
        print(
            f"  {path.stem}, run {repetition + 1}, {setting.title}: {seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    first = runs[settings[0].title]
    title = f"{path.stem}, {len(first[0].results)} steps, {repetitions} runs each"
    if limit is not None:
        title += f", at most {limit} bytes ({limit / MIB:.1f} MiB)"
    lines = [
        title,
        f"{'':20} {'step, median':>16} {'step, mean':>16} {'allocated':>10} {'reserved':>10} "
        f"{'taken':>10} {'taken /':>8}",
        f"{'':20} {'ms':>9} {'ratio':>6} {'ms':>9} {'ratio':>6} {'peak, MiB':>10} "
        f"{'peak, MiB':>10} {'MiB':>10} {'alloc.':>8}  losses",
    ]
    lines += [row(setting, runs[setting.title], first) for setting in settings]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compares the settings, and prints and saves the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, metavar="FOLDER")
    parser.add_argument("--workloads", default="gpt2_adamw", help="names, or `all`")
    parser.add_argument("--settings", default="torch,expandable,async,elastic")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--fraction", type=float, help="of an H100 80GB's memory")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the tables are kept")
    parser.add_argument("--append", action="store_true", help="to what is kept there")
    parser.add_argument(
        "--plans", type=Path, default=Path("plans"), help="NAME.json of each script"
    )
    # internal: the plan of the script that --here runs
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    # internal: run a script in this process, under this allocator
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here is not None:
        run = run_here(
            arguments.path, arguments.here, arguments.steps, arguments.limit, arguments.plan
        )
        print(json.dumps(asdict(run)))
        return
    limit = None if arguments.fraction is None else int(arguments.fraction * H100_BYTES)
    settings = [SETTINGS[name] for name in arguments.settings.split(",")]
    names = arguments.workloads.split(",")
    if arguments.workloads == "all":
        names = sorted(path.stem for path in arguments.path.glob("*.py"))
    kept = arguments.results / "training.txt"
    text = kept.read_text() + "\n" if arguments.append and kept.exists() else ""
    text += heading()
    print(heading())
    for name in names:
        path = arguments.path / f"{name}.py"
        table = compare(
            path, settings, arguments.repetitions, arguments.steps, limit, arguments.plans
        )
        print(table)
        text += f"\n{table}"
        # saved after each table, because the next one may fail
        save("training", text, arguments.results)


if __name__ == "__main__":
    main()
