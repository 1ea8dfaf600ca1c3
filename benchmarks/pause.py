"""Measures how fast a region leaves the card and returns, and the bus's best rate.

    python benchmarks/pause.py [--size 20GiB] [--repetitions 5]

A region is a group of allocations that `plimsoll.pause` moves off the card. Here a region with
tensors of all sizes is paused to page-locked memory and resumed repeatedly. The first pause, which
page-locks the memory, has a row of its own. The bus is measured in the same process by copies of
1 GiB between page-locked memory and the card. After each resume, the contents are compared, and a
CUDA graph from before the pause is replayed. Results go to benchmarks/results/pause.txt.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from report import RESULTS, heading, save

import plimsoll
from plimsoll.base.units import GiB, MiB, format_size, parse_size

if TYPE_CHECKING:
    import torch

SIZES = (512 * MiB, 64 * MiB, 20 * MiB, 3 * MiB, 300 * 1024)
COPY_BYTES = GiB
COPIES = 8


def fill(size: int) -> list[torch.Tensor]:
    """Returns tensors of many sizes with distinct contents, `size` bytes in total."""
    import torch

    tensors: list[torch.Tensor] = []
    left = size
    while left > MiB:
        for each in SIZES:
            if each <= left:
                tensors.append(torch.empty(each, dtype=torch.uint8, device="cuda"))
                left -= each
    for index, tensor in enumerate(tensors):
        tensor.random_(0, 256, generator=torch.Generator("cuda").manual_seed(index))
    return tensors


def sums(tensors: list[torch.Tensor]) -> list[int]:
    """Returns a checksum of each tensor.

    A checksum is a weighted sum of bytes. A byte's position gives its weight, from 1 to 251. The
    bytes after the last full group of 251 are left out.
    """
    import torch

    found = []
    for tensor in tensors:
        weights = torch.arange(251, device="cuda", dtype=torch.int64)
        words = tensor.view(torch.uint8)[: tensor.numel() // 251 * 251].view(-1, 251)
        found.append(int((words.sum(0, dtype=torch.int64) * (weights + 1)).sum()))
    return found


def bus_rate(*, to_card: bool) -> float:
    """Returns the bytes per second of page-locked copies in one direction."""
    import torch

    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    card = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    to, source = (card, host) if to_card else (host, card)
    to.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(COPIES):
        to.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return COPIES * COPY_BYTES / (time.perf_counter() - began)


def seconds(what: str) -> tuple[float, int]:
    """Pauses or resumes the region. Returns the seconds, and the bytes moved."""
    began = time.perf_counter()
    moved = plimsoll.pause("measured") if what == "pause" else plimsoll.resume("measured")
    return time.perf_counter() - began, moved


def measure(size: int, repetitions: int) -> str:
    """Returns the table."""
    import torch

    with plimsoll.region("measured"):
        tensors = fill(size)
        source = torch.ones(MiB, device="cuda")
        target = torch.empty(MiB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(source, 3, out=target)
    before = sums(tensors)
    rates = {"pause": bus_rate(to_card=False), "resume": bus_rate(to_card=True)}
    lines = [
        f"{len(tensors)} tensors, {format_size(sum(t.nbytes for t in tensors))}; "
        f"{repetitions} times after the first",
        f"{'':8} {'first, s':>10} {'median, s':>10} {'GB/s':>8} {'bus, GB/s':>10} {'of it':>7}",
    ]
    times: dict[str, list[float]] = {"pause": [], "resume": []}
    moved = {"pause": 0, "resume": 0}
    for repetition in range(repetitions + 1):
        free = torch.cuda.mem_get_info()[0]
        for what, found in times.items():
            took, moved[what] = seconds(what)
            found.append(took)
            if what == "pause":
                freed = torch.cuda.mem_get_info()[0] - free
                assert freed >= 0.99 * moved[what], (freed, moved[what])
        assert sums(tensors) == before, f"another content after resume {repetition + 1}"
        target.zero_()
        graph.replay()
        assert torch.equal(target, torch.full_like(target, 3)), "the graph does something else"
    for what, found in times.items():
        later = statistics.median(found[1:])
        rate = moved[what] / later
        lines.append(
            f"{what:8} {found[0]:10.3f} {later:10.3f} {rate / 1e9:8.1f} {rates[what] / 1e9:10.1f} "
            f"{rate / rates[what]:7.2f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures the region and the bus, and prints and saves the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="20GiB")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    arguments = parser.parse_args()
    plimsoll.install()
    table = measure(parse_size(arguments.size), arguments.repetitions)
    text = f"{heading()}\n{table}"
    print(text)
    save("pause", text, arguments.results)


if __name__ == "__main__":
    main()
