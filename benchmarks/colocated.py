"""Runs a trainer and an inference engine, which take turns on one card.

    python benchmarks/colocated.py [--size 16GiB] [--cycles 20] [--processes 1]

A cycle has the steps of reinforcement learning. The inference engine drops its cache, and moves its
weights and graphs to page-locked memory. The trainer returns to the card, trains a step and hands
its weights over. Then the trainer leaves, and the inference engine gets its cache again and
generates with its CUDA graph. With `--processes 2` each engine has a process of its own, and
weights go from one to the other by CUDA IPC, through a tensor of 256 MiB that always stays on the
card.

The table shows how many bytes left and returned in each cycle, and how fast. Beside these rates it
shows how fast the bus copies page-locked memory. It also shows what grew per cycle, on average:
memory in use on the card, host memory, page-locked memory, and the number of memory mappings. The
table leaves out the first two cycles, in which host memory is page-locked and caches fill. When an
engine returns, its values are compared with those that it had when it left. The exit status is 1 if
values differ, or if memory grew by 2 MiB a cycle or more. Results go to
benchmarks/results/colocated.txt.

It also runs on simulated GPUs, which hold no values to compare: `plimsoll run --simulate H100
--host-memory 128GiB --allocator elastic benchmarks/colocated.py --size 4GiB --cycles 3`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colocated_engines import BUCKET_BYTES, Inference, Moves, Trainer, digest, layers_for
from footprint import Footprint, size_text
from pause import bus_rate
from report import RESULTS, heading, save

import plimsoll
from plimsoll.base.units import MiB, format_size, parse_size
from plimsoll.engine.current import engine_of
from plimsoll.torch.simulated.start import running

if TYPE_CHECKING:
    import torch

MOST_GROWTH = 2 * MiB  # bytes per cycle
WARM = 2  # first cycles, which do not count
SECONDS = 300  # the longest time that one process waits for the other


@dataclass
class Log:
    """The measurements of one process."""

    out: Moves = field(default_factory=Moves)
    back: Moves = field(default_factory=Moves)
    dropped: Moves = field(default_factory=Moves)
    footprints: list[Footprint] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Records the memory at the end of a cycle."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        self.footprints.append(
            Footprint.now(page_locked=engine_of().host_reserved_bytes(), card=total - free)
        )

    def compare(self, what: str, *, equal: bool) -> None:
        """Notes values that differ. Does nothing on simulated GPUs, which hold no values."""
        if not equal and running() is None:
            self.differences.append(f"{what} in cycle {len(self.footprints)}")


class TrainerSide:
    """The trainer's part of a cycle."""

    def __init__(self, size: int, log: Log) -> None:
        self.trainer = Trainer(layers_for(size))
        self.log = log
        self.leave()

    def leave(self) -> None:
        """Moves the trainer off the card."""
        self._digest = digest(self.trainer.tensors())
        self.log.out.time(lambda: plimsoll.pause("training"))

    def come_and_train(self) -> None:
        """Moves the trainer back to the card and trains a step."""
        self.log.back.time(lambda: plimsoll.resume("training"))
        equal = digest(self.trainer.tensors()) == self._digest
        self.log.compare("the trainer's state", equal=equal)
        self.trainer.train()


class InferenceSide:
    """The inference engine's part of a cycle."""

    def __init__(self, size: int, log: Log) -> None:
        self.engine = Inference(layers_for(size), size // 4)
        self.log = log

    def leave(self) -> None:
        """Drops the KV cache, which new weights make useless, and moves the engine off the card."""
        self._digest = digest(self.engine.weights)
        self._answer = self.engine.answer.clone()
        self.log.dropped.time(lambda: plimsoll.pause("kv-cache", backup="drop"))
        self.log.out.time(lambda: plimsoll.pause("weights", "graphs"))

    def come(self) -> None:
        """Moves the engine back without its cache. There may be no room for the cache yet."""
        self.log.back.time(lambda: plimsoll.resume("weights", "graphs"))
        equal = digest(self.engine.weights) == self._digest
        self.log.compare("the weights", equal=equal)
        equal = bool((self.engine.answer == self._answer).all())
        self.log.compare("the graph's memory", equal=equal)

    def generate(self) -> None:
        """Restores the cache and generates."""
        self.log.dropped.time(lambda: plimsoll.resume("kv-cache"))
        self.log.compare("what the graph computes", equal=self.engine.is_right())


def in_one_process(size: int, cycles: int) -> list[Log]:
    """Runs both engines in turn in this process."""
    log = Log()
    training = TrainerSide(size, log)
    inference = InferenceSide(size, log)
    for _ in range(WARM + cycles):
        inference.leave()
        training.come_and_train()
        inference.come()
        inference.engine.load(training.trainer.weights())
        training.leave()
        inference.generate()
        log.look()
    return [log]


def serve_inference(requests: Any, answers: Any, size: int) -> None:
    """Runs the inference engine's process until the trainer ends it."""
    import torch

    plimsoll.install()
    side = InferenceSide(size, Log())
    bucket: torch.Tensor = requests.get()
    answers.put(None)
    while (request := requests.get())[0] != "end":
        what, *arguments = request
        if what == "load":
            side.engine.load_bucket(bucket, *arguments)
        elif what == "generate":
            side.generate()
            side.log.look()
        else:
            getattr(side, what)()
        torch.cuda.synchronize()
        answers.put(None)
    answers.put(side.log)


def in_two_processes(size: int, cycles: int) -> list[Log]:
    """Runs the trainer here, and the inference engine in a process of its own."""
    import torch
    from torch import multiprocessing

    log = Log()
    training = TrainerSide(size, log)
    bucket = torch.empty(BUCKET_BYTES // 2, dtype=torch.bfloat16, device="cuda")
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=serve_inference, args=(requests, answers, size))
    process.start()

    def ask(request: Any) -> Any:
        torch.cuda.synchronize()
        requests.put(request)
        return answers.get(timeout=SECONDS)

    ask(bucket)
    for _ in range(WARM + cycles):
        ask(("leave",))
        training.come_and_train()
        ask(("come",))
        for part in training.trainer.buckets(bucket):
            ask(("load", part))
        training.leave()
        ask(("generate",))
        log.look()
    other = ask(("end",))
    process.join(SECONDS)
    return [log, other]


# --- the table -------------------------------------------------------------------------------


def speed(name: str, moves: Moves, bus: float, cycles: int, per_cycle: int) -> str:
    """Returns a table row: the bytes moved in a cycle, and their rate."""
    moved, seconds = moves.moved[-cycles * per_cycle :], moves.seconds[-cycles * per_cycle :]
    sums = [sum(moved[i : i + per_cycle]) for i in range(0, len(moved), per_cycle)]
    rates = [m / s for m, s in zip(moved, seconds, strict=True) if m]
    rate = sum(moved) / sum(seconds)
    return (
        f"{name:28} {format_size(round(statistics.median(sums))):>11} "
        f"{min(rates) / 1e9:8.1f} {rate / 1e9:8.1f} {bus / 1e9:8.1f} {rate / bus:6.2f}"
    )


def growth(name: str, log: Log) -> tuple[str, int]:
    """Returns a table row of growths per cycle, and the largest growth in bytes.

    The largest is that of the card's memory, the host's memory or the page-locked memory.
    """
    first, last = log.footprints[WARM - 1], log.footprints[-1]
    cycles = len(log.footprints) - WARM
    per_cycle = {key: value // cycles for key, value in last.growth_since(first).items()}
    row = (
        f"{name:28} {size_text(per_cycle['card']):>12} {size_text(per_cycle['resident']):>12} "
        f"{size_text(per_cycle['page_locked']):>12} {size_text(per_cycle['addresses']):>12} "
        f"{(last.maps - first.maps) / cycles:+8.1f} {last.maps:7}"
    )
    return row, max(per_cycle[key] for key in ("card", "resident", "page_locked"))


def table(logs: list[Log], rates: tuple[float, float]) -> tuple[str, bool]:
    """Returns the table, and whether all checks hold."""
    names = ["both engines"] if len(logs) == 1 else ["trainer", "inference"]
    per_cycle = [2] if len(logs) == 1 else [1, 1]
    out, back = rates
    cycles = len(logs[0].footprints) - WARM
    lines = [f"{'':28} {'a cycle':>11} {'slowest':>8} {'GB/s':>8} {'bus':>8} {'of it':>6}"]
    for name, log, count in zip(names, logs, per_cycle, strict=True):
        lines.append(speed(f"{name}: out", log.out, out, cycles, count))
        lines.append(speed(f"{name}: back", log.back, back, cycles, count))
    dropped = statistics.median(logs[-1].dropped.seconds)
    lines += [
        f"cache of {format_size(logs[-1].dropped.moved[0])}, content dropped: "
        f"{dropped * 1e3:.1f} ms each way",
        "",
        f"{'growth a cycle':28} {'card':>12} {'host':>12} {'page-locked':>12} "
        f"{'addresses':>12} {'maps':>8} {'at end':>7}",
    ]
    most = 0
    for name, log in zip(names, logs, strict=True):
        row, grown = growth(name, log)
        lines.append(row)
        most = max(most, grown)
    locked = sum(log.footprints[-1].page_locked for log in logs)
    differences = [difference for log in logs for difference in log.differences]
    values = "equal" if running() is None else "not known: the GPU is simulated"
    lines += [
        "",
        f"page-locked memory: {format_size(locked)}",
        f"values: {', '.join(differences) + ' differ' if differences else values}",
    ]
    return "\n".join(lines) + "\n", not differences and most < MOST_GROWTH


def main() -> None:
    """Runs the engines, and prints and saves the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="16GiB", help="what the trainer takes")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    arguments = parser.parse_args()
    if arguments.cycles < 1:
        parser.error("growth is seen in 1 cycle or more")
    if arguments.processes == 2 and running() is not None:
        parser.error("simulated GPUs share no memory between processes: --processes 1")
    plimsoll.install()
    size = parse_size(arguments.size)
    rates = bus_rate(to_card=False), bus_rate(to_card=True)
    run = in_one_process if arguments.processes == 1 else in_two_processes
    logs = run(size, arguments.cycles)
    text, is_right = table(logs, rates)
    text = (
        f"{heading()}\n{arguments.processes} process{'es' * (arguments.processes > 1)}, "
        f"{arguments.cycles} cycles\n\n{text}"
    )
    print(text)
    save("colocated" if arguments.processes == 1 else "colocated_2", text, arguments.results)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
