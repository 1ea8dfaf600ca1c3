"""Measures how long NCCL's collectives take, and compares the times with plimsoll's rule.

    python benchmarks/collectives.py measure --nproc 2 > benchmarks/results/collectives_2_H200.csv
    python benchmarks/collectives.py compare benchmarks/results/collectives_2_H200.csv --gpu H200

`measure` needs PyTorch and --nproc GPUs that no other program uses. Each row has a collective, the
bytes of its larger tensor on a rank, and the median of the GPU's and of the host's time for one
call, in microseconds. `compare` runs the same calls on simulated GPUs.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = tuple(1 << power for power in range(10, 31, 2))
CALLS = 20
WARM_UP = 5


def calls(size: int) -> dict[str, Callable[[], Any]]:
    """Returns each collective with tensors of `size` bytes."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(size // 4, device="cuda")
    other = torch.empty_like(whole)
    part = torch.empty(size // 4 // ranks, device="cuda")

    def exchange() -> None:
        to, sender = (rank + 1) % ranks, (rank - 1) % ranks
        both = [dist.P2POp(dist.isend, whole, to), dist.P2POp(dist.irecv, other, sender)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole[: part.numel() * ranks], part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole[: part.numel() * ranks]),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "send_to_next": exchange,
    }


def rank_main() -> None:
    """Times each call on this rank. Rank 0 prints the rows."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rows = csv.writer(sys.stdout, lineterminator="\n")
    for size in SIZES:
        for name, call in calls(size).items():
            on_gpu, on_host = [], []
            for number in range(WARM_UP + CALLS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                dist.barrier()
                torch.cuda.synchronize()
                began = time.perf_counter()
                begin.record()
                call()
                end.record()
                took = time.perf_counter() - began
                torch.cuda.synchronize()
                if number >= WARM_UP:
                    on_gpu.append(begin.elapsed_time(end) * 1000)
                    on_host.append(took * 1e6)
            if dist.get_rank() == 0:
                times = (f"{statistics.median(each):.1f}" for each in (on_gpu, on_host))
                rows.writerow([name, size, *times])
    dist.destroy_process_group()


def measure(ranks: int) -> None:
    """Times the calls on this machine's GPUs, and prints their rows."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    subprocess.run([*launcher, __file__, "rank"], check=True)


def compare(path: Path, gpu: str) -> None:
    """Prints the measured and the simulated time of each call, and their ratio."""
    measured = {(name, int(size)): float(ns) for name, size, ns, _ in rows_of(path.read_text())}
    ranks = path.stem.split("_")[1]
    job = ["--nproc-per-node", ranks, "--gpu", gpu, __file__, "--", "rank"]
    ran = subprocess.run(
        [sys.executable, "-m", "plimsoll", "predict", *job],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    print(f"{'collective':16} {'bytes':>12} {'measured':>10} {'simulated':>10}   us")
    for name, size, took, _ in rows_of(ran.stdout):
        real = measured[name, int(size)]
        print(
            f"{name:16} {int(size):12} {real:10.1f} {float(took):10.1f} {float(took) / real:6.2f}"
        )


def rows_of(text: str) -> list[list[str]]:
    """Returns the rows among a text's lines."""
    found = (line.split("]")[-1].strip().split(",") for line in text.splitlines())
    return [row for row in found if len(row) == 4 and row[1].isdecimal()]


def main() -> None:
    """Parses the command line and runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure").add_argument("--nproc", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("measured", type=Path)
    comparing.add_argument("--gpu", default="H200")
    commands.add_parser("rank")
    given = parser.parse_args()
    if given.command == "measure":
        measure(given.nproc)
    elif given.command == "compare":
        compare(given.measured, given.gpu)
    else:
        rank_main()


if __name__ == "__main__":
    main()
