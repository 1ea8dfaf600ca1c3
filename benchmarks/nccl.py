"""Measures NCCL's memory on a card for different numbers of ranks, operations and groups.

    python benchmarks/nccl.py measure [--ranks 4,3,2] [--seconds 200] [--logs FOLDER]
    python benchmarks/nccl.py compare [--gpu H100]

`measure` needs PyTorch, and one machine with a GPU for each rank. No other process may use these
GPUs. `measure` runs many experiments, each as a separate distributed job. Each rank is a process
with a GPU of its own, and gets the environment variables that torchrun would set. The rank runs a
list of statements. After each statement, it asks the driver how much of the card is in use, and
subtracts PyTorch's reserved memory. The script imports PyTorch once and forks the ranks, so an
experiment takes seconds. With --logs, NCCL logs its allocations to that folder (NCCL_DEBUG).
`compare` runs the same experiments on simulated GPUs, and prints the simulated memory beside the
measured memory.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "nccl.json"
MIB = 1 << 20
EXPERIMENT_SECONDS = 40
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "communicator": ("bound",),
    "barrier": ("barrier",),
    "all_reduce": (
        "all_reduce:64",
        "all_reduce:65536",
        "all_reduce:4194304",
        "all_reduce:134217728",
    ),
    "all_reduce_large": ("all_reduce:134217728", "all_reduce:64"),
    "all_gather": ("all_gather:64", "all_gather:67108864"),
    "reduce_scatter": ("reduce_scatter:64", "reduce_scatter:67108864"),
    "broadcast": ("broadcast:64", "broadcast:67108864"),
    "reduce": ("reduce:67108864",),
    "all_to_all": ("all_to_all:64", "all_to_all:67108864"),
    "send_to_next": ("send_to_next:67108864",),
    "send_alone": ("send_alone:67108864", "send_alone:67108864"),
    "gather": ("gather:1048576",),
    "scatter": ("scatter:1048576",),
    "collectives_then_sends": ("all_reduce:1048576", "send_to_next:1048576", "all_to_all:1048576"),
    "sends_then_collectives": ("all_to_all:1048576", "all_reduce:1048576", "all_gather:1048576"),
    "groups": (
        "all_reduce:1048576",
        *("new_group", "all_reduce:1048576") * 3,
    ),
    "groups_of_sends": ("all_to_all:1048576", "new_group", "all_to_all:1048576"),
    "halves": ("all_reduce:1048576", "halves", "all_reduce:1048576", "all_to_all:1048576"),
}
"""For each experiment, the statements that every rank runs, in order.

A statement is the name of a method of `_Rank`. A number after a colon is its argument, a size in
bytes.
"""
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "all_reduce_8_channels": ("all_reduce", {"NCCL_MAX_NCHANNELS": "8"}),
    "all_reduce_1MiB_buffers": ("all_reduce", {"NCCL_BUFFSIZE": "1048576"}),
    "all_to_all_8_channels": ("all_to_all", {"NCCL_MAX_P2P_NCHANNELS": "8"}),
}
"""More experiments: each repeats one of `EXPERIMENTS` with environment variables for NCCL."""


def work_of(name: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns an experiment's statements, and the environment variables that it sets for NCCL."""
    base, more = SETTINGS.get(name, (name, {}))
    return EXPERIMENTS[base], more


# --- a rank ---------------------------------------------------------------------------------------


class _Rank:
    """One rank of an experiment; its methods are the statements."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        self.group: Any = None

    def run(self, statements: Sequence[str]) -> list[tuple[str, int]]:
        """Runs statements, and returns the memory after each.

        Returns:
            Each statement, with the bytes in use on the card after it. PyTorch's reserved bytes
            are left out. The first pair, "context", has the bytes in use before any statement.
        """
        self.torch.zeros(1, device=self.device)
        found = [("context", self._outside())]
        bound = statements[0] == "bound"
        self.dist.init_process_group("nccl", device_id=self.device if bound else None)
        for statement in statements:
            name, _, size = statement.partition(":")
            getattr(self, name)(*([int(size)] if size else []))
            self.torch.cuda.synchronize()
            found.append((statement, self._outside()))
        return found

    def _outside(self) -> int:
        self.torch.cuda.synchronize()
        free, total = self.torch.cuda.mem_get_info()
        return int(total - free - self.torch.cuda.memory_reserved())

    def _bytes(self, size: int) -> Any:
        return self.torch.ones(size // 4, device=self.device)

    def bound(self) -> None:
        """Does nothing: `init_process_group` already made the communicator."""

    def barrier(self) -> None:
        self.dist.barrier(self.group)

    def new_group(self) -> None:
        self.group = self.dist.new_group(range(self.count))

    def halves(self) -> None:
        half = max(1, self.count // 2)
        parts = [range(half), range(half, self.count)]
        groups = [self.dist.new_group(part) for part in parts]
        self.group = groups[0 if self.rank < half else 1]

    def all_reduce(self, size: int) -> None:
        self.dist.all_reduce(self._bytes(size), group=self.group)

    def all_gather(self, size: int) -> None:
        whole = self._bytes(size * self.count)
        self.dist.all_gather_into_tensor(whole, self._bytes(size), group=self.group)

    def reduce_scatter(self, size: int) -> None:
        whole = self._bytes(size * self.count)
        self.dist.reduce_scatter_tensor(self._bytes(size), whole, group=self.group)

    def broadcast(self, size: int) -> None:
        self.dist.broadcast(self._bytes(size), 0, group=self.group)

    def reduce(self, size: int) -> None:
        self.dist.reduce(self._bytes(size), 0, group=self.group)

    def all_to_all(self, size: int) -> None:
        count = self.dist.get_world_size(self.group)
        whole = size // 4 // count * count * 4 or 4 * count
        self.dist.all_to_all_single(self._bytes(whole), self._bytes(whole), group=self.group)

    def send_to_next(self, size: int) -> None:
        dist, count = self.dist, self.count
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._bytes(size), (self.rank + 1) % count),
                dist.P2POp(dist.irecv, self._bytes(size), (self.rank - 1) % count),
            ]
        )
        for work in works:
            work.wait()

    def send_alone(self, size: int) -> None:
        """Receives from the previous rank, then sends to the next, by two separate operations.

        A pipeline that does not batch its operations does the same.
        """
        if self.rank:
            self.dist.recv(self._bytes(size), self.rank - 1)
        if self.rank + 1 < self.count:
            self.dist.send(self._bytes(size), self.rank + 1)

    def gather(self, size: int) -> None:
        parts = [self._bytes(size) for _ in range(self.count)] if self.rank == 0 else None
        self.dist.gather(self._bytes(size), parts, 0)

    def scatter(self, size: int) -> None:
        parts = [self._bytes(size) for _ in range(self.count)] if self.rank == 0 else None
        self.dist.scatter(self._bytes(size), parts, 0)


# --- on GPUs --------------------------------------------------------------------------------------


def measure(counts: Sequence[int], seconds: float, results: Path, logs: Path | None) -> None:
    """Measures every experiment with each number of ranks, and saves the results."""
    importlib.import_module("torch.distributed")  # imported here once; forked processes inherit it
    began = time.monotonic()
    for count in counts:
        for name in (*EXPERIMENTS, *SETTINGS):
            if time.monotonic() - began > seconds:
                print(f"{count} ranks, {name}: not run, {seconds:.0f} s are over", flush=True)
                continue
            found = _measured(name, count, logs)
            kept = json.loads(results.read_text()) if results.exists() else {}
            kept.setdefault(f"{count} ranks", {})[name] = found
            results.write_text(json.dumps(kept, indent=1) + "\n")
            print(f"{count} ranks, {name}: {_shown(found)}", flush=True)


def _measured(name: str, count: int, logs: Path | None) -> dict[str, Any]:
    """Runs an experiment, and repeats it if another program had taken its port."""
    found = _tried(name, count, logs)
    return _tried(name, count, logs) if "EADDRINUSE" in found.get("why_not", "") else found


def _tried(name: str, count: int, logs: Path | None) -> dict[str, Any]:
    statements, more = work_of(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(count):
            environment = {
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
                **{"LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"},
                **{"MASTER_PORT": str(port), **more},
            }
            if logs is not None:
                environment |= {
                    "NCCL_DEBUG": "INFO",
                    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ALLOC,P2P,TUNING",
                    "NCCL_DEBUG_FILE": str(logs / f"{count}_{name}_{rank}.log"),
                }
            ranks.append(_forked(lambda: _rank(statements, folder), environment))
        ended = _ended(ranks)
        found = [Path(folder, f"rank{rank}.json") for rank in range(count)]
        if not ended or not all(path.exists() for path in found):
            errors = [path.read_text()[-600:] for path in Path(folder).glob("error*")]
            return {"why_not": errors[0] if errors else "took too long"}
        return {"ranks": [json.loads(path.read_text()) for path in found]}


def _rank(statements: Sequence[str], folder: str) -> None:
    import traceback

    number = os.environ["RANK"]
    try:
        found = _Rank().run(statements)
    except BaseException:
        Path(folder, f"error{number}").write_text(traceback.format_exc())
        raise
    Path(folder, f"rank{number}.json").write_text(json.dumps(found))
    count, end = int(os.environ["WORLD_SIZE"]), time.monotonic() + 10
    while len(list(Path(folder).glob("rank*.json"))) < count and time.monotonic() < end:
        time.sleep(0.01)  # rank 0 serves the job's store, which the other ranks may still need


def _forked(what: Callable[[], None], environment: dict[str, str]) -> int:
    process = os.fork()
    if process:
        return process
    os.environ.update(environment)
    status = 1
    try:
        what()
        status = 0
    finally:
        os._exit(status)


def _ended(processes: Sequence[int]) -> bool:
    """Waits for all processes, and returns whether all succeeded.

    If a process fails, or the time for an experiment is over, kills the processes that still run.
    """
    left, good = set(processes), True
    end = time.monotonic() + EXPERIMENT_SECONDS
    while left:
        for process in list(left):
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                left.discard(process)
                good = good and status == 0
        if left and (not good or time.monotonic() > end):
            for process in left:
                os.kill(process, 9)
                os.waitpid(process, 0)
            return False
        time.sleep(0.02)
    return good


def _shown(found: dict[str, Any]) -> str:
    if "why_not" in found:
        return str(found["why_not"])
    ranks = [
        " ".join(f"{(now - last) / MIB:.0f}" for (_, last), (_, now) in itertools.pairwise(steps))
        for steps in found["ranks"]
    ]
    return f"context {found['ranks'][0][0][1] / MIB:.0f}; " + " | ".join(ranks)


# --- simulated ------------------------------------------------------------------------------------


def compare(gpu: str, counts: Sequence[int], results: Path) -> None:
    """Runs each experiment on simulated GPUs. Prints its simulated and its measured memory."""
    measured = json.loads(results.read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "simulated.json")
        ranks = ",".join(map(str, counts))
        command = [sys.executable, "-m", "plimsoll", "run", "--simulate", gpu]
        command += ["--gpus", str(max(counts)), __file__, "measure", "--ranks", ranks]
        subprocess.run([*command, "--results", str(path)], check=True, stdout=subprocess.DEVNULL)
        simulated = json.loads(path.read_text())
    for count in counts:
        for name in (*EXPERIMENTS, *SETTINGS):
            both = [all_[f"{count} ranks"][name] for all_ in (simulated, measured)]
            if any("why_not" in each for each in both):
                print(f"{count} ranks, {name}: not measured")
                continue
            for rank, steps in enumerate(zip(*(each["ranks"] for each in both), strict=True)):
                most = max(abs(ours[1] - theirs[1]) for ours, theirs in zip(*steps, strict=True))
                ours, theirs = (each[-1][1] / MIB for each in steps)
                print(
                    f"{count} ranks, {name}, rank {rank}: {ours:.0f} for {theirs:.0f} MiB, "
                    f"{ours / theirs - 1:+.2%}; after a step at most {most / MIB:.0f} MiB off"
                )


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare"])
    parser.add_argument("--gpu", default="H100", help="the card that is simulated")
    parser.add_argument("--ranks", default="4,3,2")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--logs", type=Path)
    chosen = parser.parse_args()
    if chosen.logs is not None:
        chosen.logs.mkdir(parents=True, exist_ok=True)
    counts = [int(each) for each in chosen.ranks.split(",")]
    if chosen.what == "compare":
        compare(chosen.gpu, counts, chosen.results)
    else:
        measure(counts, chosen.seconds, chosen.results, chosen.logs)


if __name__ == "__main__":
    main()
