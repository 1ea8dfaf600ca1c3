"""Times loading batches: a plain loop, a tutorial's side-stream loader, and PrefetchLoader.

    python benchmarks/data.py [--repetitions 5] [--steps 60] [--batch 256MiB] [--workers 8]

Needs a GPU. Makes three tables:

1. Steps on batches in page-locked memory. The copy of a batch takes 0.25, 0.5, 1 and 2 times as
   long as the step's computing. The table compares the time of a step, measured by CUDA events,
   with the longer of two times: copying alone and computing alone. It also has the peak of device
   memory, as a number of batches. Of several repetitions the table shows the fastest, because
   other programs on the host can only add time.
2. Loading with a DataLoader whose workers make the batches. The plain loop, the tutorials' loader
   and PrefetchLoader run with `pin_memory=True`. PrefetchLoader also runs twice without
   `pin_memory`: once as it is, and once with PinnedCollate. Each run has two epochs.
   The second is timed.
3. A convolutional classifier on batches of five sizes. The table has peak reserved over peak
   allocated memory under PyTorch's allocator and plimsoll's. Each run is a process of its own.

Results go to benchmarks/results/data.txt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from report import RESULTS, heading, save
from torch import nn
from training import MIB, found_by

from plimsoll.base.units import parse_size
from plimsoll.offloading.data.collate import PinnedCollate
from plimsoll.offloading.data.loader import PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

RATIOS = (0.25, 0.5, 1.0, 2.0)
WARM_UP = 10


# --- loaders --------------------------------------------------------------------------------------


def moved(batch: Any) -> Any:
    """Returns a batch on the GPU without waiting for the copy."""
    if isinstance(batch, tuple | list):
        return tuple(moved(part) for part in batch)
    return batch.to("cuda", non_blocking=True)


def plain(loader: Iterable[Any]) -> Iterator[Any]:
    """Copies each batch on the computing stream."""
    for batch in loader:
        yield moved(batch)


class TutorialLoader:
    """The loader that tutorials show: copies ahead on a side stream, without record_stream."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        stream = torch.cuda.Stream()
        current = None
        for batch in self._loader:
            with torch.cuda.stream(stream):
                following = moved(batch)
            if current is not None:
                yield current
            torch.cuda.current_stream().wait_stream(stream)
            current = following
        yield current


def ahead(loader: Iterable[Any]) -> Iterable[Any]:
    """Returns a PrefetchLoader."""
    return PrefetchLoader(loader, "cuda")


METHODS: dict[str, Callable[[Iterable[Any]], Iterable[Any]]] = {
    "non_blocking": plain,
    "tutorial": TutorialLoader,
    "PrefetchLoader": ahead,
}


# --- copies during computing ----------------------------------------------------------------------


class Computing:
    """Matrix products that keep the GPU busy for a chosen time."""

    def __init__(self) -> None:
        self._a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._a)
        self.run(20)
        self._ms = self.ms(100) / 100

    def products(self, ms: float) -> int:
        """Returns the number of products that take `ms` milliseconds."""
        return max(1, round(ms / self._ms))

    def ms(self, products: int) -> float:
        """Returns the time of `products` matrix products."""
        return milliseconds(lambda: self.run(products))

    def steps_ms(self, size: int, products: int, steps: int) -> float:
        """Returns the time of a step without any copy: its batch is already on the GPU."""
        batch = torch.empty(size, dtype=torch.uint8, device="cuda")

        def work() -> None:
            for _ in range(steps):
                self.step(batch, products)

        return milliseconds(work) / steps

    def step(self, batch: Any, products: int) -> None:
        """Queues the computing on a batch."""
        batch.add_(1)
        self.run(products)

    def run(self, products: int) -> None:
        """Queues `products` matrix products."""
        for _ in range(products):
            torch.mm(self._a, self._a, out=self._out)


def milliseconds(work: Callable[[], Any]) -> float:
    """Returns the GPU time of `work`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def copy_ms(host: list[Any]) -> float:
    """Returns the time to copy one batch to the GPU."""
    device = torch.empty_like(host[0], device="cuda")

    def copy() -> None:
        for batch in host * 5:
            device.copy_(batch, non_blocking=True)

    return milliseconds(copy) / (5 * len(host))


def step_ms(batches: Iterable[Any], computing: Computing, products: int, steps: int) -> float:
    """Returns the mean time between two batches, without the warm-up."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            begin.record()
        if number == steps - 1:
            end.record()
        computing.step(batch, products)
    end.synchronize()
    return float(begin.elapsed_time(end)) / (steps - 1 - WARM_UP)


def copies_beside_computing(size: int, steps: int, repetitions: int) -> str:
    """Returns the first table: step times and memory while copies and computing overlap."""
    computing = Computing()
    host = [torch.ones(size, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    source = [host[number % 4] for number in range(steps)]
    first_copy = copy_ms(host)
    lines = [
        f"batches of {size / MIB:.0f} MiB, {steps} steps, least of {repetitions}; "
        "memory in batches, beside what was there",
        f"{'copy /':>8} {'copy':>7} {'compute':>8} {'max':>7}"
        + "".join(f" {name + ', ms':>19} {'/ max':>6} {'memory':>6}" for name in METHODS),
    ]
    for ratio in RATIOS:
        products = computing.products(first_copy / ratio)
        # for each repetition: the ms of copying alone, and the ms of computing alone
        alone: list[tuple[float, float]] = []
        found: dict[str, list[float]] = {name: [] for name in METHODS}
        memory = dict.fromkeys(METHODS, 0.0)
        for _ in range(repetitions):
            alone.append((copy_ms(host), computing.steps_ms(size, products, steps)))
            for name, loader in METHODS.items():
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                found[name].append(step_ms(loader(source), computing, products, steps))
                peak = torch.cuda.max_memory_allocated() - before
                memory[name] = max(memory[name], peak / size)
        copy, compute = (min(times) for times in zip(*alone, strict=True))
        least = max(copy, compute)
        line = f"{ratio:8.2f} {copy:7.2f} {compute:8.2f} {least:7.2f}"
        for name, times in found.items():
            ms = min(times)
            line += f" {ms:19.2f} {ms / least:6.3f} {memory[name]:6.2f}"
        lines.append(line)
    return "\n".join(lines) + "\n"


# --- workers --------------------------------------------------------------------------------------


class Images(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples that already exist, so that a worker makes a batch by copying only."""

    def __init__(self, count: int) -> None:
        self._images = torch.randint(0, 255, (64, 3, 224, 224), dtype=torch.uint8)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._images[index % 64], index


def batches_of_workers(workers: int, batch: int, batches: int, repetitions: int) -> str:
    """Returns the second table: each loader's time for a batch that DataLoader workers make."""
    settings: list[tuple[str, Any, dict[str, Any]]] = [
        ("non_blocking, pin_memory", plain, {"pin_memory": True}),
        ("tutorial, pin_memory", TutorialLoader, {"pin_memory": True}),
        ("PrefetchLoader, pin_memory", ahead, {"pin_memory": True}),
        ("PrefetchLoader alone", ahead, {}),
        ("PrefetchLoader, PinnedCollate", ahead, {"collate_fn": PinnedCollate()}),
    ]
    size = batch * 3 * 224 * 224
    lines = [
        f"batches of {batch} images, {size / MIB:.0f} MiB, {workers} workers, median of "
        f"{repetitions}",
        f"{'':30} {'ms a batch':>10} {'GB/s':>6}",
    ]
    for title, loader, options in settings:
        found = []
        for _ in range(repetitions):
            batches_on_host = torch.utils.data.DataLoader(
                Images(batch * batches),
                batch,
                num_workers=workers,
                persistent_workers=True,
                prefetch_factor=4,
                **options,
            )
            for _ in range(2):
                began = time.perf_counter()
                total = torch.zeros((), dtype=torch.long, device="cuda")
                for images, _ in loader(batches_on_host):
                    total += images[:, 0, 0, 0].sum()
                total.item()
                seconds = (time.perf_counter() - began) / batches
            found.append(seconds)
        seconds = statistics.median(found)
        lines.append(f"{title:30} {seconds * 1e3:10.2f} {size / seconds / 1e9:6.1f}")
    return "\n".join(lines) + "\n"


# --- memory ---------------------------------------------------------------------------------------


def side_stream(data: list[Any]) -> Iterator[Any]:
    """Loads on a side stream with record_stream, as shared/workloads/prefetch_streams.py does."""
    copies = torch.cuda.Stream()

    def fetch(batch: Any) -> Any:
        with torch.cuda.stream(copies):
            return moved(batch)

    ready = fetch(data[0])
    for number in range(len(data)):
        torch.cuda.current_stream().wait_stream(copies)
        batch = ready
        for tensor in batch:
            tensor.record_stream(torch.cuda.current_stream())
        if number + 1 < len(data):
            ready = fetch(data[number + 1])
        yield batch


LOADERS = {"side stream": side_stream, "non_blocking": plain, "PrefetchLoader": ahead}


def train(loader: Callable[[list[Any]], Iterable[Any]], steps: int = 30) -> tuple[int, int]:
    """Trains the model of shared/workloads/prefetch_streams.py.

    Returns the peaks of reserved and allocated memory.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(4096, 1000),
    ).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    sizes = [32 + 8 * (i % 5) for i in range(steps)]
    data = [
        (torch.randn(n, 3, 96, 96).pin_memory(), torch.randint(0, 1000, (n,)).pin_memory())
        for n in sizes
    ]
    for x, y in loader(data):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()


def memory_of_training() -> str:
    """Returns a table of the memory that a training run takes with each loader and allocator."""
    lines = [
        "a classifier on batches of five sizes, in MiB",
        f"{'':15} {'allocator':12} {'reserved':>9} {'allocated':>9} {'ratio':>6}",
    ]
    for allocator in ("torch", "native", "elastic"):
        for name in LOADERS:
            command = [sys.executable, __file__, "--here", json.dumps([name, allocator])]
            reserved, allocated = found_by(command, f"{name}, {allocator}")["peaks"]
            lines.append(
                f"{name:15} {allocator:12} {reserved / MIB:9.1f} {allocated / MIB:9.1f} "
                f"{reserved / allocated:6.3f}"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Makes, prints and saves the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", default="256MiB")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--images", type=int, default=256, help="a batch of the second table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the tables are kept")
    # internal: train in this process, with this loader and allocator
    parser.add_argument("--here", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here is not None:
        name, allocator = json.loads(arguments.here)
        if allocator != "torch":
            import plimsoll

            plimsoll.install(allocator)
        print(json.dumps({"peaks": train(LOADERS[name])}))
        return
    text = heading()
    print(text)
    size, repetitions = parse_size(arguments.batch), arguments.repetitions
    tables: list[Callable[[], str]] = [
        lambda: copies_beside_computing(size, arguments.steps, repetitions),
        lambda: batches_of_workers(arguments.workers, arguments.images, 100, repetitions),
        memory_of_training,
    ]
    for table in tables:
        made = table()
        print(made, flush=True)
        text += f"\n{made}"
        # saved after each table, because the next one may fail
        save("data", text, arguments.results)


if __name__ == "__main__":
    main()
