"""Uses PyTorch's memory at random for minutes, under the elastic allocator.

    python benchmarks/soak.py [--seconds 600] [--memory 24GiB] [--threads 3] [--seed 1]

Threads on streams of their own allocate tensors of random sizes, write to them, let other streams
use the tensors, and check the contents of some tensors before they free them. The main thread
captures, replays and destroys CUDA graphs, whose memory is in private pools or in a region (a named
group of allocations that `plimsoll.pause` moves off the card). The main thread also makes and drops
`torch.cuda.MemPool`s, pauses and resumes regions, copies from page-locked memory, and empties the
cache. It changes the memory fraction, and requests more memory than the card has.

Ten times during the run, all threads stop for checks, and a row is written. The allocator checks
its own data structures, and its statistics must agree with its blocks and the driver. After the
second row, three things must not grow any more: the host's memory, the number of memory mappings,
and the card's memory outside the allocator. The exit status is 1 if a check failed. Results go to
benchmarks/results/soak.txt.

It runs on simulated GPUs too, which hold no values: `plimsoll run --simulate H100 --allocator
elastic benchmarks/soak.py --seconds 20`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from footprint import Footprint, size_text
from report import RESULTS, heading, save
from soak_tensors import Tensor, Tensors, require

import plimsoll
from plimsoll.base.units import KiB, MiB, format_size, parse_size
from plimsoll.engine.current import engine_of

if TYPE_CHECKING:
    import torch

ROWS = 10
REGIONS = ("weights", "kv-cache")
MOST_HOST_GROWTH = 64 * MiB  # for Python's and the driver's own memory
MOST_MAPS_GROWTH = 500
MOST_CARD_GROWTH = 64 * MiB  # for kernels, which the driver loads when they are first used


@dataclass
class Graph:
    """A captured CUDA graph that computes `result = (source + 1) * 2`."""

    graph: torch.cuda.CUDAGraph
    source: torch.Tensor
    result: torch.Tensor
    in_region: bool


class Soak:
    """The soak test's program, and the rows of its table."""

    def __init__(self, memory: int, threads: int, seed: int) -> None:
        import torch

        self.memory = memory
        self.random = random.Random(seed)
        self.workers = [Tensors(seed * 1000 + i, memory // (2 * threads)) for i in range(threads)]
        # a worker holds its lock during an action
        self.locks = [threading.Lock() for _ in self.workers]
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self.counts: dict[str, int] = {}
        self.graphs: list[Graph] = []
        self.pools: list[tuple[torch.cuda.MemPool, Tensor]] = []
        self.kept: dict[str, list[Tensor]] = {}
        self.own = Tensors(seed, memory // 8)
        self.total = torch.cuda.mem_get_info()[1]
        self.rows: list[Footprint] = []
        for name in REGIONS:
            with plimsoll.region(name):
                self.kept[name] = [self.own.take(self.own.size()) for _ in range(5)]

    # --- actions ---------------------------------------------------------------------------------

    def run(self, seconds: float) -> Iterator[str]:
        """Yields rows as they complete."""
        threads = [
            threading.Thread(target=self.work, args=(i,), daemon=True)
            for i in range(len(self.workers))
        ]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        try:
            for row in range(1, ROWS + 1):
                while time.monotonic() - began < seconds * row / ROWS:
                    self.act()
                with self.at_rest():
                    yield self.row(time.monotonic() - began)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        self.end()

    def work(self, number: int) -> None:
        """Runs one worker thread's loop."""
        try:
            while not self.over.is_set():
                with self.locks[number]:
                    self.workers[number].act()
        except BaseException as error:
            self.failures.append(error)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Pauses all workers, with the GPU idle, until the `with` block ends."""
        import torch

        with contextlib.ExitStack() as held:
            for lock in self.locks:
                held.enter_context(lock)
            require(not self.failures, f"a thread failed: {self.failures}")
            torch.cuda.synchronize()
            yield

    def act(self) -> None:
        """Does one random action on the main thread, then allocates or frees tensors of `own`.

        If memory runs out, drops half of the graphs and half of the pools.
        """
        import torch

        what = self.random.choice(
            [self.capture, self.replay, self.replay, self.pool, self.pause, self.pinned] * 4
            + [self.empty, self.fraction, self.too_much]
        )
        try:
            what()
            self.counts[what.__name__] = self.counts.get(what.__name__, 0) + 1
        except (torch.OutOfMemoryError, plimsoll.OutOfMemoryError):
            self.own.counts["out of memory"] += 1
            del self.graphs[::2], self.pools[::2]
        self.own.act()

    def capture(self) -> None:
        """Captures a `Graph`. Its memory is in a private pool or in a region."""
        import torch

        if len(self.graphs) > 8:
            self.graphs.pop(self.random.randrange(len(self.graphs)))
        in_region = self.random.random() < 0.5 and not is_away("graphs")
        pool = plimsoll.graph_pool("graphs") if in_region else None
        count = self.own.size()
        source = torch.zeros(count, dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with self.at_rest(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = source + 1
            result = result * 2
        self.graphs.append(Graph(graph, source, result, in_region))

    def replay(self) -> None:
        """Replays some graph with new input."""
        if not self.graphs:
            return
        graph = self.random.choice(self.graphs)
        if graph.in_region and is_away("graphs"):
            return
        value = self.random.randrange(100)
        graph.source.fill_(value)
        graph.graph.replay()
        if self.own.has_values:
            require(bool((graph.result == 2 * (value + 1)).all()), "a graph computes another value")

    def pool(self) -> None:
        """Makes a MemPool with a tensor. If there are five MemPools, first drops one."""
        import torch

        if len(self.pools) > 4:
            pool, tensor = self.pools.pop(self.random.randrange(len(self.pools)))
            self.own.check(tensor)
            del tensor, pool
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            self.pools.append((pool, self.own.take(self.own.size())))

    def pause(self) -> None:
        """Pauses some regions, or resumes all paused ones."""
        away = [name for name in (*REGIONS, "graphs") if is_away(name)]
        if away:
            with self.at_rest():
                plimsoll.resume(*away)
            for name in away:
                for tensor in self.kept.get(name, []):
                    self.own.check(tensor)
            return
        names = [*REGIONS, *(["graphs"] if any(g.in_region for g in self.graphs) else [])]
        with self.at_rest():
            plimsoll.pause(*self.random.sample(names, self.random.randrange(1, len(names) + 1)))

    def pinned(self) -> None:
        """Copies from page-locked memory to the card and back."""
        import torch

        host = torch.empty(self.own.size(), dtype=torch.uint8, pin_memory=True)
        value = self.random.randrange(256)
        host.fill_(value)
        card = host.to("cuda", non_blocking=True)
        back = card.to("cpu", non_blocking=True)
        torch.cuda.current_stream().synchronize()
        if self.own.has_values:
            require(bool((back == value).all()), "a copy brings another value")

    def empty(self) -> None:
        """Empties PyTorch's cache."""
        import torch

        with self.at_rest():
            torch.cuda.empty_cache()

    def fraction(self) -> None:
        """Changes the fraction of the card that the process may use."""
        import torch

        part = self.random.choice((1.0, 1.2, 1.5)) * self.memory / self.total
        torch.cuda.set_per_process_memory_fraction(min(1.0, part))

    def too_much(self) -> None:
        """Requests more memory than the card has."""
        import torch

        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(2 * self.total, dtype=torch.uint8, device="cuda")
            require(False, "there is more than there is")

    # --- checks ----------------------------------------------------------------------------------

    def footprint(self) -> Footprint:
        """Returns the memory in use. `card` does not count the memory that PyTorch reserved."""
        import torch

        free, total = torch.cuda.mem_get_info()
        return Footprint.now(
            page_locked=engine_of().host_reserved_bytes(),
            card=total - free - torch.cuda.memory_reserved(),
        )

    def check_books(self) -> None:
        """Compares the allocator's statistics with its blocks."""
        import torch

        torch.cuda.empty_cache()  # also completes frees that wait for other streams
        engine_of().check_invariants()
        segments = plimsoll.memory_snapshot()["segments"]
        active = sum(segment["allocated_size"] for segment in segments)
        require(active == torch.cuda.memory_allocated(), "allocated is not what lives")
        here = sum(s["total_size"] for s in segments if not s.get("is_paused"))
        require(here == torch.cuda.memory_reserved(), "reserved is not what segments say")
        mine = sum(self.alive())
        require(active >= mine, f"{active} bytes are allocated, {mine} are alive")

    def alive(self) -> Iterator[int]:
        """Yields the bytes of each live tensor, rounded up as the allocator rounds."""
        tensors = [tensor.data for worker in [*self.workers, self.own] for tensor in worker.live]
        tensors += [tensor.data for kept in self.kept.values() for tensor in kept]
        tensors += [tensor.data for _, tensor in self.pools]
        tensors += [tensor for graph in self.graphs for tensor in (graph.source, graph.result)]
        return (-(-tensor.nbytes // 512) * 512 for tensor in tensors)

    def row(self, seconds: float) -> str:
        """Returns a table row of the present state.

        Fails if memory has grown too much since the second row.
        """
        import torch

        self.check_books()
        now = self.footprint()
        self.rows.append(now)
        growth = now.growth_since(self.rows[:2][-1])
        # Resident memory includes page-locked memory only under some drivers. `host` is the
        # smaller of two figures: the growth with page-locked memory, and without it.
        host = min(growth["resident"], growth["resident"] - growth["page_locked"])
        require(host <= MOST_HOST_GROWTH, f"the host's memory grew by {size_text(host)}")
        require(growth["maps"] <= MOST_MAPS_GROWTH, f"{growth['maps']:+} maps")
        require(growth["card"] <= MOST_CARD_GROWTH, f"the card lost {size_text(growth['card'])}")
        return (
            f"{seconds:7.0f} {format_size(torch.cuda.memory_allocated()):>11} "
            f"{format_size(torch.cuda.memory_reserved()):>11} {format_size(now.card):>11} "
            f"{size_text(host):>12} {format_size(now.page_locked):>11} {now.maps:6} "
            f"{format_size(now.addresses):>11}"
        )

    def end(self) -> None:
        """Frees all tensors, and checks that only PyTorch's own memory is left."""
        import torch

        torch.cuda.set_per_process_memory_fraction(1.0)
        for worker in [*self.workers, self.own]:
            worker.live.clear()
        self.kept.clear()
        self.pools.clear()
        self.graphs.clear()
        away = [name for name in (*REGIONS, "graphs") if is_away(name)]
        if away:
            plimsoll.resume(*away)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.check_books()
        left = torch.cuda.memory_allocated()
        require(left <= 64 * KiB, f"{left} bytes stay allocated")
        require(torch.cuda.memory_reserved() <= 4 * MiB, "memory stays reserved")


def is_away(name: str) -> bool:
    """Returns whether a region is paused; False if it does not exist yet."""
    try:
        return plimsoll.is_paused(name)
    except plimsoll.InputError:
        return False


def main() -> None:
    """Runs the soak test, and prints and saves the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--memory", default="24GiB", help="about how much lives at most")
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    arguments = parser.parse_args()
    plimsoll.install()
    soak = Soak(parse_size(arguments.memory), arguments.threads, arguments.seed)
    lines = [
        heading(),
        f"{'seconds':>7} {'allocated':>11} {'reserved':>11} {'card beside':>11} "
        f"{'host grown':>12} {'page-locked':>11} {'maps':>6} {'addresses':>11}",
    ]
    print("\n".join(lines), flush=True)
    for row in soak.run(arguments.seconds):
        print(row, flush=True)
        lines.append(row)
    done = dict(soak.counts)
    for tensors in [*soak.workers, soak.own]:
        for what, count in tensors.counts.items():
            done[what] = done.get(what, 0) + count
    lines.append(", ".join(f"{count} {what}" for what, count in sorted(done.items())))
    lines.append("statistics agree with blocks and driver; nothing is left at the end")
    print("\n".join(lines[-2:]))
    save("soak", "\n".join(lines) + "\n", arguments.results)


if __name__ == "__main__":
    main()
