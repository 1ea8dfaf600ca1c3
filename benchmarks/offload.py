"""Measures step times when saved tensors move to host memory because the card's memory is limited.

    python benchmarks/offload.py FOLDER [--workloads gpt2_adamw,...] [--repetitions 3] [--steps N]
        [--cards 8400MiB,6GiB,...] [--methods plain,offload,...] [--budget-share 0.98]
        [--allocators elastic,torch] [--deterministic]

FOLDER holds scripts NAME.py with a function `main(steps)`. Every run is a process of its own, and
the methods alternate: "plain", "save_on_cpu", "offload", "placed" and "both" (see `Setting`).
`--cards` limits what the process may take from the GPU. The budget of `plimsoll.offload` is the
limit times `--budget-share`, because the allocator needs some memory beyond the tensors. CUDA
events measure a step, from one `backward` to the next. The first quarter of the steps, at most
five, does not count. Losses are compared bit for bit with those of the unchanged script. Two runs
of one script give equal losses only with `--deterministic` kernels. Results go to
benchmarks/results/offload.txt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from report import RESULTS, heading, save
from training import MIB, STEPS, Run, found_by, largest_difference, run_watched

from plimsoll.base.units import format_size, parse_size

METHODS = ("plain", "save_on_cpu", "offload", "placed", "both")
CARDS = "8400MiB,7GiB,6GiB,5500MiB,5GiB,4836MiB"


@dataclass(frozen=True)
class Setting:
    """The settings of a run.

    Attributes:
        method: "plain" is the unchanged script. "save_on_cpu" runs it under
            `save_on_cpu(pin_memory=True)`, "offload" under `plimsoll.offload`. "placed" keeps the
            optimizer's state in host memory; the optimizer's kernels read and write that state over
            the bus. "both" does what "offload" and "placed" do.
        allocator: "torch", or one of plimsoll's.
        card_bytes: The most that the process may take from the GPU; 0 means no limit.
        budget_bytes: The budget of `plimsoll.offload`.
        deterministic: Whether PyTorch uses deterministic kernels.
    """

    method: str
    allocator: str
    card_bytes: int = 0
    budget_bytes: int = 0
    deterministic: bool = False

    def title(self) -> str:
        """Returns the title in the table."""
        card = format_size(self.card_bytes) if self.card_bytes else "all"
        return f"{self.method:12} {self.allocator:8} {card:>10}"


@dataclass(frozen=True)
class OffloadRun(Run):
    """The results of one process, with the bytes moved.

    Attributes:
        out_bytes: Bytes moved to host memory in the last step.
        back_bytes: Bytes moved back in that step.
        waited_ms: How long the GPU waited for moves in that step, in ms.
    """

    out_bytes: int = 0
    back_bytes: int = 0
    waited_ms: float = 0


def run_here(path: Path, setting: Setting, steps: int | None) -> OffloadRun:
    """Runs a script in this process, which must be a new one."""
    import torch

    import plimsoll

    if setting.deterministic:
        # deterministic cuBLAS needs this workspace
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        # After this, PyTorch raises an error for an operation that has no deterministic kernel.
        # With warn_only it would only warn, and attention would not be deterministic.
        torch.use_deterministic_algorithms(True)
        # The backward pass of cuDNN's attention adds in an order that can differ in each run.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if setting.allocator != "torch":
        plimsoll.install(setting.allocator)  # type: ignore[arg-type]
    if setting.method in ("placed", "both"):
        place_optimizers()
    limit = setting.card_bytes or None
    if setting.method in ("offload", "both"):
        torch.cuda.init()
        offload = plimsoll.offload(setting.budget_bytes)
        run = run_watched(path, steps, limit, offload)
        moved = offload.statistics()
        return OffloadRun(
            **asdict(run),
            out_bytes=moved.out_bytes,
            back_bytes=moved.back_bytes,
            waited_ms=moved.waited_seconds * 1000,
        )
    saves = setting.method == "save_on_cpu"
    around = torch.autograd.graph.save_on_cpu(pin_memory=True) if saves else None
    return OffloadRun(**asdict(run_watched(path, steps, limit, around)))


def place_optimizers() -> None:
    """Makes every optimizer keep its state in host memory, from the optimizer's first step on."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    import plimsoll

    placed: dict[int, Any] = {}

    def place(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in placed:
            placed[id(optimizer)] = plimsoll.place_optimizer(optimizer)

    register_optimizer_step_pre_hook(place)


def run_apart(path: Path, setting: Setting, steps: int | None) -> OffloadRun:
    """Runs a script under a setting, in a process of its own."""
    command = [sys.executable, __file__, str(path), "--here", json.dumps(asdict(setting))]
    if steps is not None:
        command += ["--steps", str(steps)]
    run = OffloadRun(**found_by(command, f"{path.name}, {setting.title()}"))
    if run.error is not None:
        print(f"  {run.error}", file=sys.stderr)
    return run


def describe(runs: list[OffloadRun], wanted: list[float]) -> str:
    """Returns the text of the table's last column for the runs of one setting.

    If a run failed, the text says how many steps it had run. Otherwise it says how far the losses
    of the runs are from `wanted`.
    """
    failed = [run for run in runs if run.error is not None]
    if failed:
        return f"out of memory after {len(failed[0].results)} steps"
    worst = max(largest_difference(run.results, wanted) for run in runs)
    return "the same" if worst == 0 else f"differ by {worst:.1e}"


def step_ms(runs: list[OffloadRun]) -> float | None:
    """Returns the median of the runs' median step times; None if a run failed."""
    if not all(run.step_ms and run.error is None for run in runs):
        return None
    return statistics.median(statistics.median(run.step_ms) for run in runs)


def row(setting: Setting, runs: list[OffloadRun], first: list[OffloadRun]) -> str:
    """Returns one line of the table.

    `runs` are the setting's runs, and `first` are the unchanged script's runs. The line has the
    setting's step time divided by the unchanged script's.
    """
    line = setting.title()
    step, plain = step_ms(runs), step_ms(first)
    line += " {:>8}".format("-" if step is None else f"{step:.2f}")
    line += " {:>6}".format("-" if step is None or plain is None else f"{step / plain:.2f}")
    for what in ("peak_allocated_bytes", "peak_reserved_bytes", "taken_bytes"):
        line += f" {statistics.median(getattr(run, what) for run in runs) / MIB:9.1f}"
    for what in ("out_bytes", "back_bytes"):
        line += f" {statistics.median(getattr(run, what) for run in runs) / MIB:7.0f}"
    line += f" {statistics.median(run.waited_ms for run in runs):7.1f}"
    return f"{line}  {describe(runs, first[0].results)}"


def compare(path: Path, settings: list[Setting], repetitions: int, steps: int | None) -> str:
    """Runs a script under each setting in turn, and returns the table."""
    if steps is None:
        steps = STEPS.get(path.stem)
    runs: dict[Setting, list[OffloadRun]] = {setting: [] for setting in settings}
    for repetition, setting in itertools.product(range(repetitions), settings):
        began = time.perf_counter()
        run = run_apart(path, setting, steps)
        runs[setting].append(run)
        step = step_ms([run])
        print(
            f"  {path.stem}, run {repetition + 1}, {setting.title()}: "
            f"{time.perf_counter() - began:.1f} s" + (f", {step:.2f} ms a step" if step else ""),
            file=sys.stderr,
            flush=True,
        )
    first = runs[settings[0]]
    lines = [
        f"{path.stem}, {len(first[0].results)} steps, {repetitions} runs each",
        f"{'':21} {'':>10} {'step':>8} {'':>6} {'allocated':>9} {'reserved':>9} {'taken':>9} "
        f"{'out':>7} {'back':>7} {'waited':>7}",
        f"{'method':12} {'from':8} {'card':>10} {'ms':>8} {'ratio':>6} {'peak, MiB':>9} "
        f"{'peak, MiB':>9} {'MiB':>9} {'MiB':>7} {'MiB':>7} {'ms':>7}  losses",
    ]
    lines += [row(setting, runs[setting], first) for setting in settings]
    return "\n".join(lines) + "\n"


def all_settings(arguments: argparse.Namespace) -> list[Setting]:
    """Returns the settings in the order of the table; the first is the unchanged script."""
    methods = arguments.methods.split(",")
    settings = [Setting("plain", "torch")]
    if "save_on_cpu" in methods:
        settings.append(Setting("save_on_cpu", "torch"))
    for card in map(parse_size, arguments.cards.split(",")):
        for allocator in arguments.allocators.split(","):
            for method in methods:
                if allocator == "elastic" or method not in ("placed", "both"):
                    budget = int(card * arguments.budget_share)
                    settings.append(Setting(method, allocator, card, budget))
    return [replace(setting, deterministic=arguments.deterministic) for setting in settings]


def main() -> None:
    """Compares the settings, and prints and saves the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, metavar="FOLDER")
    parser.add_argument("--workloads", default="gpt2_adamw", help="names")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cards", default=CARDS, help="what may be taken of the GPU")
    parser.add_argument("--methods", default=",".join(METHODS), help="of these")
    parser.add_argument("--deterministic", action="store_true", help="kernels")
    parser.add_argument("--budget-share", type=float, default=0.98, help="of a card")
    parser.add_argument("--allocators", default="elastic", help="elastic, native, torch")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the tables are kept")
    # internal: run a script in this process, under this setting
    parser.add_argument("--here", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here is not None:
        run = run_here(arguments.path, Setting(**json.loads(arguments.here)), arguments.steps)
        print(json.dumps(asdict(run)))
        return
    settings = all_settings(arguments)
    text = heading()
    print(heading())
    for name in arguments.workloads.split(","):
        table = compare(
            arguments.path / f"{name}.py", settings, arguments.repetitions, arguments.steps
        )
        print(table)
        text += f"\n{table}"
        # saved after each table, because the next one may fail
        save("offload", text, arguments.results)


if __name__ == "__main__":
    main()
