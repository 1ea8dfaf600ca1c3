"""Compares step times under PyTorch's allocator and under plimsoll's elastic allocator.

    python benchmarks/pairs.py SCRIPT ... [--seconds 400] [--least 6] [--deterministic]
    python benchmarks/pairs.py --table

Each SCRIPT has a function `main(steps)`. A pair is two runs, one under each allocator. Which
allocator comes first alternates. Each run is forked from a process that has imported the libraries
and has not touched the GPU. A pair yields a ratio: the mean step time under the elastic allocator
divided by that under PyTorch's. training.py says how a step is measured. At first, every script
gets `--least` pairs. After that, each next pair goes to the script whose ratio has the widest 95 %
interval. No new pair begins after `--seconds`.

Every pair becomes a row of results/pairs.csv; later runs append to the file. The table covers all
rows. It has each script's ratio (the Hodges-Lehmann estimate) with its 95 % interval (by Wilcoxon's
signed-rank test). It also has the memory that the elastic allocator takes from the card, divided by
the peak of allocated memory. A shared host sometimes delays a run for longer than all of its steps
take. Such outliers distort a mean, but not the estimate and its interval.

With --deterministic one pair of each script runs with PyTorch's deterministic kernels, and its
losses are compared bit for bit. If a script uses an operation without a deterministic kernel, it
runs again with `warn_only`; attention is then not deterministic either.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from report import RESULTS
from training import MIB, STEPS, Run, run_here

FAMILIES = ("bert", "llama", "mixtral", "resnet", "t5")
LIBRARIES = (
    "torch",
    "torchvision",
    *(f"transformers.models.{each}.modeling_{each}" for each in FAMILIES),
    "transformers.generation.utils",
    "plimsoll.torch.session.install",
)
KINDS = {"str": str, "int": int, "float": float}
NORMAL = 1.96
"""In a normal distribution, ±1.96 standard deviations around the mean hold 95 %."""
MOST_RATIO, TOUCHED_RATIO = 1.03, 1.01
MOST_TAKEN, USUAL_TAKEN, SLACK_MIB = 1.02, 1.015, 16


@dataclass(frozen=True)
class Pair:
    """One row of pairs.csv.

    Fields that end in `_ms` are mean step times in milliseconds. Fields that end in `_mib` are
    memory in MiB.
    """

    date: str
    card: str
    script: str
    deterministic: int
    elastic_first: int
    torch_ms: float
    elastic_ms: float
    torch_taken_mib: float
    elastic_taken_mib: float
    elastic_allocated_mib: float
    same_losses: int

    @property
    def ratio(self) -> float:
        """Returns the elastic allocator's mean step time divided by that of PyTorch's allocator."""
        return self.elastic_ms / self.torch_ms

    @property
    def taken_ratio(self) -> float:
        """Returns the peak of taken memory divided by the peak of allocated memory.

        Taken memory is what the elastic allocator has got from the card.
        """
        return self.elastic_taken_mib / self.elastic_allocated_mib


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Returns the estimate of a script's ratio, and the two ends of its 95 % interval.

    The interval is 0 to infinity if there are fewer than six pairs.
    """
    logs = [math.log(ratio) for ratio in ratios]
    pairs = itertools.combinations_with_replacement(logs, 2)
    averages = sorted(math.exp((one + other) / 2) for one, other in pairs)
    count = len(logs)
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    # the number of averages that lie outside the interval at each end
    outside = math.floor(len(averages) / 2 - NORMAL * deviation)
    if outside < 1:
        return statistics.median(averages), 0.0, math.inf
    return statistics.median(averages), averages[outside - 1], averages[-outside]


def forked(path: Path, allocator: str, kernels: str) -> Run:
    """Runs a script in a process forked from this one."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            os.close(reading)
            try:
                if kernels:
                    use_deterministic_kernels(warn_only=kernels == "some")
                run = run_here(path, allocator, STEPS.get(path.stem), None)
                with os.fdopen(writing, "w") as pipe:
                    pipe.write(json.dumps(asdict(run)))
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, ended = os.waitpid(child, 0)
    if ended != 0 or not text:
        raise RuntimeError(f"{path.name} under {allocator or 'torch'} failed")
    return Run(**json.loads(text))


def use_deterministic_kernels(*, warn_only: bool) -> None:
    """Makes PyTorch use deterministic kernels. Call it before the process touches the GPU."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.benchmark = False


def pair(path: Path, card: str, *, elastic_first: bool, deterministic: bool) -> Pair:
    """Runs a script under both allocators, and returns the pair."""
    order = ("elastic", "") if elastic_first else ("", "elastic")
    try:
        kernels = "all" if deterministic else ""
        runs = {allocator: forked(path, allocator, kernels) for allocator in order}
    except RuntimeError:
        if not deterministic:
            raise
        runs = {allocator: forked(path, allocator, "some") for allocator in order}
    torch_run, elastic_run = runs[""], runs["elastic"]
    return Pair(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        card=card,
        script=path.stem,
        deterministic=int(deterministic),
        elastic_first=int(elastic_first),
        torch_ms=round(statistics.mean(torch_run.step_ms), 4),
        elastic_ms=round(statistics.mean(elastic_run.step_ms), 4),
        torch_taken_mib=torch_run.taken_bytes / MIB,
        elastic_taken_mib=elastic_run.taken_bytes / MIB,
        elastic_allocated_mib=round(elastic_run.peak_allocated_bytes / MIB, 2),
        same_losses=int(torch_run.results == elastic_run.results),
    )


def read(file: Path) -> list[Pair]:
    """Returns all stored pairs."""
    if not file.exists():
        return []
    kinds = {field.name: KINDS[str(field.type)] for field in fields(Pair)}
    with file.open(newline="") as text:
        return [
            Pair(**{name: kinds[name](value) for name, value in row.items()})
            for row in csv.DictReader(text)
        ]


def write(file: Path, pairs: Iterable[Pair]) -> None:
    """Writes all pairs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as text:
        rows = csv.DictWriter(text, [field.name for field in fields(Pair)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(each) for each in pairs)


def table(pairs: list[Pair]) -> str:
    """Returns the table of all pairs."""
    by_script: dict[str, list[Pair]] = defaultdict(list)
    for each in pairs:
        by_script[each.script].append(each)
    days, cards = sorted({each.date for each in pairs}), sorted({each.card for each in pairs})
    lines = [
        f"{len(pairs)} pairs on {', '.join(cards)}; {', '.join(days)}",
        "",
        f"{'':20} {'pairs':>5} {'mean step':>10} {'ratio':>7} {'95 % interval':>16} "
        f"{'PyTorch':>9} {'taken, MiB':>11} {'taken /':>8}  losses",
        f"{'':20} {'':5} {'ms':>10} {'':7} {'':16} {'takes':>9} {'':11} {'alloc.':>8}",
    ]
    for script, all_of_it in sorted(by_script.items()):
        timed = [each for each in all_of_it if not each.deterministic]
        exact = [each for each in all_of_it if each.deterministic]
        some = timed or exact
        ratio, low, high = interval([each.ratio for each in timed]) if timed else (math.nan,) * 3
        torch_taken = statistics.median(each.torch_taken_mib for each in some)
        taken = max(some, key=lambda each: each.taken_ratio)
        is_slow = timed and not (low <= TOUCHED_RATIO and high < MOST_RATIO)
        is_large = taken.taken_ratio > MOST_TAKEN and (
            taken.elastic_taken_mib - taken.elastic_allocated_mib > SLACK_MIB
        )
        same = "the same" if all(each.same_losses for each in exact) else "differ"
        lines.append(
            f"{script:20} {len(timed):5} {statistics.median(e.torch_ms for e in some):10.2f} "
            f"{ratio:7.4f} {f'{low:.4f} {high:.4f}':>15}{'*' if is_slow else ' '} "
            f"{torch_taken:9.1f} {taken.elastic_taken_mib:11.1f} "
            f"{taken.taken_ratio:7.4f}{'*' if is_large else ' '}  {same if exact else '-'}"
        )
    lines.append(
        "\nlosses: with deterministic kernels\n"
        f"*: the interval lies above {TOUCHED_RATIO} or does not end below {MOST_RATIO}; "
        f"more than {MOST_TAKEN} and {SLACK_MIB} MiB above is taken"
    )
    return "\n".join(lines) + "\n"


def card_name() -> str:
    """Returns the first GPU's name from nvidia-smi, so that CUDA stays uninitialized here."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()[0]


def measure(paths: list[Path], options: argparse.Namespace, kept: list[Pair]) -> None:
    """Runs pairs until the time is over. Saves each pair as soon as it is complete."""
    # Without this, `torch.cuda` would initialize CUDA here, and forked processes could not use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in LIBRARIES:
        importlib.import_module(name)
    card = card_name()
    ends = time.monotonic() + options.seconds
    least = 1 if options.deterministic else options.least
    ratios: dict[Path, list[float]] = {path: [] for path in paths}

    def width(path: Path) -> float:
        _, low, high = interval(ratios[path])
        return high - low

    while ratios and time.monotonic() < ends:
        short = [path for path, found in ratios.items() if len(found) < least]
        if options.deterministic and not short:
            break
        path = min(short, key=lambda each: len(ratios[each])) if short else max(ratios, key=width)
        began = time.monotonic()
        try:
            found = pair(
                path,
                card,
                elastic_first=len(ratios[path]) % 2 == 1,
                deterministic=options.deterministic,
            )
        except (RuntimeError, statistics.StatisticsError) as error:
            del ratios[path]
            print(error, file=sys.stderr, flush=True)
            continue
        ratios[path].append(found.ratio)
        kept.append(found)
        write(options.results / "pairs.csv", kept)
        print(
            f"{time.monotonic() - began:5.1f} s  {found.script:20} {found.ratio:.4f}  "
            f"{found.taken_ratio:.4f}  {'same' if found.same_losses else 'differ'}",
            file=sys.stderr,
            flush=True,
        )


def main() -> None:
    """Measures pairs, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--least", type=int, default=6, help="pairs of each script")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--table", action="store_true", help="only print it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file is")
    options = parser.parse_args()
    kept = read(options.results / "pairs.csv")
    if not options.table:
        measure(options.scripts, options, kept)
    print(table(kept))
    (options.results / "pairs.txt").write_text(table(kept))


if __name__ == "__main__":
    main()
