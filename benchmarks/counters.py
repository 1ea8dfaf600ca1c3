"""Measures what it costs to publish a program's memory counters, which `plimsoll top` shows.

    python benchmarks/counters.py [FOLDER [--workload gpt2_adamw] [--steps 2400]]
        [--intervals 0.25,0.01] [--allocator elastic]

The first table has the CPU time of one sample, also as a share of the interval between two samples.
A sample is read from an allocator on a simulated GPU and written to a file. The last line of the
table is the time that `plimsoll top` takes to read all processes' counters.

With FOLDER, which holds scripts NAME.py with a function `main(steps)`, the program also measures
the step time on a GPU with and without the publisher. Both are measured in one process: blocks of
steps alternate in the order on, off, off, on, so that slow changes cancel. CUDA events measure a
step, from one `backward` to the next. The first block is left out. The table has the mean and
not the median, because a sample is taken in only a few of the steps. Effects that are too small to
see at the default interval are visible at a much shorter one. Results go to
benchmarks/results/counters.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from report import RESULTS, heading, save
from training import Steps, found_by, load_main

from plimsoll import Allocator, SimulatedMachine
from plimsoll.base.telemetry.counters import read_processes
from plimsoll.base.telemetry.publisher import INTERVAL_SECONDS, Publisher, source_of_process
from plimsoll.base.units import MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.torch.simulated.simulated_counters import SimulatedCounters

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = 2000
BLOCK_SECONDS = 1.5


def processor_microseconds(work: Callable[[], object]) -> float:
    """Returns the CPU microseconds of one call in this thread."""
    for _ in range(50):
        work()
    began = time.thread_time_ns()
    for _ in range(SAMPLES):
        work()
    return (time.thread_time_ns() - began) / SAMPLES / 1e3


# --- the cost of a sample -------------------------------------------------------------------------


def simulated_source(gpus: int, blocks: int) -> Any:
    """Returns an object that reads the memory counters of simulated GPUs.

    Each GPU's allocator has `blocks` live blocks of 1 MiB.
    """
    profile = gpu_profile("H100")
    machine = SimulatedMachine([profile.total_bytes] * gpus)
    allocators = [Allocator(gpu) for gpu in machine.gpus]
    for allocator in allocators:
        for _ in range(blocks):
            allocator.malloc(MiB)
    simulation: Any = SimpleNamespace(
        allocators=allocators,
        profiles=[profile] * gpus,
        machine=machine,
        contexts=set(range(gpus)),
    )
    return SimulatedCounters(simulation)


def sample_table(folder: Path) -> str:
    """Returns a table with the CPU times to take a sample, and to read all processes' counters."""
    lines = [
        f"one sample, every {INTERVAL_SECONDS} s, by the processor time of its thread",
        f"{'GPUs':>6} {'live blocks':>12} {'read, us':>10} {'and write, us':>14} {'of a core':>10}",
    ]
    for gpus, blocks in ((1, 10), (1, 20_000), (8, 10)):
        source = simulated_source(gpus, blocks)
        publisher = Publisher(source, dict, folder)
        read = processor_microseconds(source.read)
        both = processor_microseconds(publisher.write)
        share = both / INTERVAL_SECONDS / 1e6
        lines.append(f"{gpus:>6} {blocks:>12,} {read:>10.1f} {both:>14.1f} {share:>10.4%}")
        looked = processor_microseconds(lambda: read_processes(only=folder))
        publisher.stop()
    lines.append(f"looking at one process with 8 GPUs, as top does: {looked:.1f} us")
    return "\n".join(lines) + "\n"


# --- in the process that trains -------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The results of one process.

    Attributes:
        on_ms: For each block of steps during which the publisher ran, the mean step time.
        off_ms: For each block of steps during which the publisher was paused, the mean step time.
        sample_us: The CPU time of one sample.
    """

    on_ms: list[float]
    off_ms: list[float]
    sample_us: float


class Turns:
    """Switches the publisher on and off between blocks of steps."""

    ORDER = (True, False, False, True)

    def __init__(self, interval: float, folder: Path) -> None:
        self._interval = interval
        self._folder = folder
        self._publisher: Publisher | None = None
        self._is_on = False
        self._began = time.monotonic()
        self._steps = 0
        # the first step of each block, and whether the publisher runs
        self.blocks: list[tuple[int, bool]] = []

    def step(self) -> None:
        """Counts a step that begins.

        If the step is the first of a block, starts or pauses the publisher, as `ORDER` says.
        """
        now = time.monotonic()
        if not self.blocks or now - self._began > BLOCK_SECONDS:
            self._began = now
            self._switch(on=self.ORDER[len(self.blocks) % len(self.ORDER)])
            self.blocks.append((self._steps, self._is_on))
        self._steps += 1

    def _switch(self, *, on: bool) -> None:
        publisher = self.publisher()
        if on and not self._is_on:
            publisher.start()
        elif self._is_on and not on:
            publisher.pause()
        self._is_on = on

    def publisher(self) -> Publisher:
        """Returns the publisher, which the first call creates."""
        if self._publisher is None:
            source = source_of_process()
            assert source is not None, "plimsoll does not serve this process"
            self._publisher = Publisher(source, dict, self._folder, interval_seconds=self._interval)
        return self._publisher


def train_here(path: Path, steps: int, allocator: str, interval: float, folder: Path) -> Found:
    """Runs a script in this process, which must be a new one."""
    import torch

    import plimsoll

    plimsoll.install(allocator)  # type: ignore[arg-type]
    torch.cuda.init()
    watched = Steps(torch)
    watched.watch_training()
    turns = Turns(interval, folder)
    backward = torch.Tensor.backward

    def marked(loss: Any, *arguments: Any, **named: Any) -> Any:
        turns.step()
        return backward(loss, *arguments, **named)

    torch.Tensor.backward = marked
    load_main(path)(steps)
    torch.cuda.synchronize()
    publisher = turns.publisher()
    publisher.pause()
    times = [begin.elapsed_time(end) for begin, end in watched._marks]
    means: dict[bool, list[float]] = {True: [], False: []}
    for (first, is_on), (end, _) in zip(turns.blocks[1:], turns.blocks[2:], strict=False):
        means[is_on].append(statistics.mean(times[first:end]))
    sample = processor_microseconds(publisher.write)
    publisher.stop()
    return Found(means[True], means[False], sample)


def step_row(found: Found, interval: float) -> str:
    """Returns one line of the table."""
    on, off = statistics.mean(found.on_ms), statistics.mean(found.off_ms)
    error = sum(statistics.variance(values) / len(values) for values in (found.on_ms, found.off_ms))
    return (
        f"{interval:>10g} {len(found.on_ms):>8} {off:>10.3f} {on:>10.3f} {on / off - 1:>+10.3%} "
        f"{error**0.5 / off:>10.3%} {found.sample_us:>12.1f} "
        f"{found.sample_us / interval / 1e6:>10.4%}"
    )


def main() -> None:
    """Measures the publisher, and prints and saves the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, metavar="FOLDER", nargs="?")
    parser.add_argument("--workload", default="gpt2_adamw")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--intervals", default=f"{INTERVAL_SECONDS},0.01")
    parser.add_argument("--allocator", default="elastic")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    # internal: train in this process, with this interval
    parser.add_argument("--here", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.here is not None:
            found = train_here(
                arguments.path, arguments.steps, arguments.allocator, arguments.here, folder
            )
            print(json.dumps(asdict(found)))
            return
        text = f"{heading()}\n{sample_table(folder)}"
    print(text, flush=True)
    if arguments.path is not None:
        os.environ["PLIMSOLL_PUBLISH"] = "0"  # no other publisher than the measured one
        script = arguments.path / f"{arguments.workload}.py"
        table = (
            f"{arguments.workload}, {arguments.steps} steps, {arguments.allocator}; ms of a step\n"
            f"{'every, s':>10} {'blocks':>8} {'off':>10} {'on':>10} {'more':>10} "
            f"{'std. error':>10} {'sample, us':>12} {'of a core':>10}\n"
        )
        for interval in map(float, arguments.intervals.split(",")):
            command = [sys.executable, __file__, str(script), "--here", str(interval)]
            command += ["--steps", str(arguments.steps), "--allocator", arguments.allocator]
            table += step_row(Found(**found_by(command, script.name)), interval) + "\n"
        print(table)
        text += f"\n{table}"
    save("counters", text, arguments.results)


if __name__ == "__main__":
    main()
