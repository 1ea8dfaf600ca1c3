"""Measures what it costs to record a program.

    python benchmarks/record.py [FOLDER [--workload gpt2_adamw] [--steps 1200] [--repetitions 3]]
        [--settings torch,torch-without-stacks,elastic]

First, it times two parts of recording on the CPU. In one, the program's thread looks up the number
of a call stack. In the other, plimsoll's thread writes the buffered events to the file.

With FOLDER, which holds scripts NAME.py with a function `main(steps)`, it measures the step time on
a GPU in two ways. The first way is in one process: blocks of steps with and without recording
alternate in the order on, off, off, on, so that slow changes cancel. The first two steps of a block
do not count. The second way alternates between processes that record from the first step to the
last and processes that never record. The second way is needed because PyTorch goes on reporting its
events after recording has stopped, which costs time. CUDA events measure a step, from one
`backward` to the next. Results go to benchmarks/results/record.txt.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from report import RESULTS, heading, save
from training import Steps, found_by, load_main

import plimsoll
from plimsoll import Allocator, SimulatedGpu, _core
from plimsoll.engine.recorder.recorder import INTERVAL_SECONDS, Recorder
from plimsoll.torch.session.record import record

BLOCK_STEPS = 20
NOT_COUNTED = 2
FIRST_BLOCKS = 2  # the first blocks of a process do not count, and neither does the last one
LEAST_STEPS = 4 * (FIRST_BLOCKS + 2) * BLOCK_STEPS
ORDER = (True, False, False, True)
STEP_SECONDS, EVENTS_A_STEP = 0.029, 2500  # about those of gpt2_adamw on an H100
EVENTS = round(INTERVAL_SECONDS / STEP_SECONDS * EVENTS_A_STEP)
"""The number of events in a timed write. gpt2_adamw makes this many between two writes."""


@dataclass(frozen=True)
class Setting:
    """The allocator that a run uses, and whether a recording of the run has call stacks."""

    title: str
    allocator: str = ""  # name of a plimsoll allocator, or ""
    stacks: bool = True


SETTINGS = {
    "torch": Setting("PyTorch"),
    "torch-without-stacks": Setting("PyTorch, no stacks", stacks=False),
    "elastic": Setting("plimsoll elastic", allocator="elastic"),
}


# --- the parts of recording -----------------------------------------------------------------------


def capture_nanoseconds(depth: int) -> tuple[int, float]:
    """Returns this call stack's depth, and the shortest time to look up its number, in ns."""
    if depth > 0:
        return capture_nanoseconds(depth - 1)
    number = _core.capture_stack()

    def least(call: Any) -> float:
        best = float("inf")
        for _ in range(50):
            began = time.perf_counter_ns()
            for _ in range(2000):
                call()
            best = min(best, (time.perf_counter_ns() - began) / 2000)
        return best

    return len(_core.stack_frames(number)), least(_core.capture_stack) - least(_core.recorder_api)


def writing(folder: Path) -> tuple[float, float]:
    """Returns the CPU microseconds to write `EVENTS` events, and the bytes per event."""
    allocator = Allocator(SimulatedGpu("80GB"))
    chance = random.Random(1)
    recorder = record(folder / "parts.plim", allocator=allocator)
    microseconds = []
    with recorder:
        live: list[int] = []
        for _ in range(50):
            while len(live) < EVENTS // 3:
                live.append(allocator.malloc(chance.randrange(1, 1 << 22)))
            while live:
                allocator.free(live.pop(chance.randrange(len(live))))
            began = time.thread_time_ns()
            recorder.flush()
            microseconds.append((time.thread_time_ns() - began) / 1e3)
        events = recorder.event_count
    return statistics.median(microseconds), recorder.path.stat().st_size / events


def parts_table(folder: Path) -> str:
    """Returns the times to look up a call stack and to write events, as text."""
    lines = ["a call stack that was seen before"]
    for depth in (5, 30, 60):
        levels, nanoseconds = capture_nanoseconds(depth)
        lines.append(f"{levels:>6} levels {nanoseconds:>8.0f} ns")
    microseconds, size = writing(folder)
    lines.append(
        f"writing {EVENTS} events, those of {INTERVAL_SECONDS * 1e3:.0f} ms of training: "
        f"{microseconds:.0f} us of the thread that writes, {size:.1f} bytes an event"
    )
    return "\n".join(lines) + "\n"


# --- in the process that trains -------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The results of one process.

    Attributes:
        on_ms: The mean step time of each recorded block, in ms.
        off_ms: The mean step time of each block without recording, in ms.
        events: Events recorded per step.
        dropped: Events that were lost.
    """

    on_ms: list[float]
    off_ms: list[float]
    events: float
    dropped: int


class Turns:
    """Switches recording on and off between blocks of steps."""

    def __init__(self, order: tuple[bool, ...], folder: Path, *, stacks: bool) -> None:
        self._order = order
        self._folder = folder
        self._stacks = stacks
        self._recorder: Recorder | None = None
        self._steps = 0
        # the first step of each block, and whether the block is recorded
        self.blocks: list[tuple[int, bool]] = []
        self.events = self.dropped = self.recorded_steps = 0

    def step(self) -> None:
        """Counts a step that begins.

        If the step is the first of a block, starts or stops recording, as the next entry of
        `order` says.
        """
        if self._steps % BLOCK_STEPS == 0:
            on = self._order[len(self.blocks) % len(self._order)]
            self.switch(on=on)
            self.blocks.append((self._steps, on))
        self.recorded_steps += self._recorder is not None
        self._steps += 1

    def switch(self, *, on: bool) -> None:
        """Starts or stops recording."""
        if self._recorder is not None and not on:
            self._recorder.stop()
            self.events += self._recorder.event_count
            self.dropped += self._recorder.dropped
            self._recorder = None
        elif self._recorder is None and on:
            path = self._folder / f"{len(self.blocks)}.plim"
            self._recorder = record(path, stacks=self._stacks).__enter__()


def train_here(path: Path, steps: int, setting: Setting, order: tuple[bool, ...]) -> Found:
    """Runs a script in this process, which must be a new one."""
    import torch

    if setting.allocator:
        plimsoll.install(setting.allocator)  # type: ignore[arg-type]
    torch.cuda.init()
    watched = Steps(torch)
    watched.watch_training()
    backward = torch.Tensor.backward
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(order, Path(folder), stacks=setting.stacks)

        def marked(loss: Any, *arguments: Any, **named: Any) -> Any:
            turns.step()
            return backward(loss, *arguments, **named)

        torch.Tensor.backward = marked
        load_main(path)(steps)
        torch.cuda.synchronize()
        turns.switch(on=False)
    times = [begin.elapsed_time(end) for begin, end in watched._marks]
    means: dict[bool, list[float]] = {True: [], False: []}
    for (first, is_on), (end, _) in pairwise(turns.blocks[FIRST_BLOCKS:]):
        means[is_on].append(statistics.mean(times[first + NOT_COUNTED : end]))
    events = turns.events / max(turns.recorded_steps, 1)
    return Found(means[True], means[False], events, turns.dropped)


# --- in the process that compares -----------------------------------------------------------------


def train_apart(script: Path, steps: int, name: str, order: str) -> Found:
    """Runs a script in a process of its own."""
    command = [sys.executable, __file__, str(script), "--here", name, "--order", order]
    return Found(**found_by([*command, "--steps", str(steps)], script.name))


def row(title: str, off: list[float], on: list[float], found: Found, error: float) -> str:
    """Returns one line of the table; `error` is the standard error of the difference, in ms."""
    before = statistics.mean(off)
    return (
        f"{title:44} {before:>9.3f} {statistics.mean(on):>9.3f} "
        f"{statistics.mean(on) / before - 1:>+8.2%} "
        f"{error / before:>10.2%} {found.events:>12.0f} {found.dropped:>8}"
    )


def error_by_turns(off: list[float], on: list[float]) -> float:
    """Returns the standard error of `on` minus `off`, from the differences of adjacent blocks."""
    differences = [a - b for a, b in zip(on, off, strict=False)]
    return float(statistics.stdev(differences) / len(differences) ** 0.5)


def error_apart(off: list[float], on: list[float]) -> float:
    """Returns the standard error of `on` minus `off`, for independent blocks."""
    return float(sum(statistics.variance(ms) / len(ms) for ms in (on, off)) ** 0.5)


def compare(script: Path, steps: int, repetitions: int, names: list[str]) -> str:
    """Makes the table of a script."""
    lines = [
        f"{script.stem}, {steps} steps; ms of a step",
        f"{'':44} {'off':>9} {'on':>9} {'more':>8} {'std. error':>10} {'events/step':>12} "
        f"{'dropped':>8}",
    ]
    for name in names:
        found = train_apart(script, steps, name, "turns")
        error = error_by_turns(found.off_ms, found.on_ms)
        title = f"{SETTINGS[name].title}, in turns"
        lines.append(row(title, found.off_ms, found.on_ms, found, error))
        print(lines[-1], file=sys.stderr, flush=True)
        never: list[float] = []
        always: list[float] = []
        for _ in range(repetitions):
            never += train_apart(script, steps // 4, name, "never").off_ms
            found = train_apart(script, steps // 4, name, "always")
            always += found.on_ms
        title = f"{SETTINGS[name].title}, {repetitions} processes each"
        lines.append(row(title, never, always, found, error_apart(never, always)))
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints and keeps the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, metavar="FOLDER", nargs="?")
    parser.add_argument("--workload", default="gpt2_adamw")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--settings", default="torch,torch-without-stacks,elastic")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the tables are kept")
    # internal: train in this process, under this setting
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--order", default="turns", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.repetitions < 2:
        parser.error("at least two repetitions are needed to say how sure the difference is")
    if arguments.here is None and arguments.steps < LEAST_STEPS:
        parser.error(f"at least {LEAST_STEPS} steps are needed, of which processes do a quarter")
    if arguments.here is not None:
        order = {"turns": ORDER, "never": (False,), "always": (True,)}[arguments.order]
        setting = SETTINGS[arguments.here]
        print(json.dumps(asdict(train_here(arguments.path, arguments.steps, setting, order))))
        return
    with tempfile.TemporaryDirectory() as folder:
        text = f"{heading()}\n{parts_table(Path(folder))}"
    print(text, flush=True)
    if arguments.path is not None:
        script = arguments.path / f"{arguments.workload}.py"
        names = arguments.settings.split(",")
        table = compare(script, arguments.steps, arguments.repetitions, names)
        print(table)
        text += f"\n{table}"
    save("record", text, arguments.results)


if __name__ == "__main__":
    main()
