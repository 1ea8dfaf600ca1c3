"""Uses an allocator at random for a simulated day, on a simulated GPU.

    python benchmarks/soak_simulated.py [--simulated-hours 24] [--seed 1]

Each step takes about a second of simulated time. It makes tensors of random sizes on six streams,
uses them on other streams, and creates and releases private pools as CUDA graphs do. It pauses and
resumes regions (named groups of allocations that `plimsoll.pause` moves off the card), changes the
memory fraction, and sometimes empties the cache.

After a tenth of the time, the process must not grow any more. This covers resident memory, the
number of memory mappings, and the address space and events that the allocator gets from the driver.
At intervals the allocator checks its own data structures, and its figures must agree with the
program's and the driver's. At the end all memory must be free. The exit status is 1 if a check
failed. The same seed gives the same run.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from footprint import Footprint, size_text

import plimsoll
from plimsoll.base.units import GiB, MiB, format_size
from plimsoll.engine.current import set_engines
from plimsoll.engine.protocol import Engine
from plimsoll.engine.simulator.allocator import Allocator, MemoryPool
from plimsoll.engine.simulator.machine import SimulatedMachine

REGIONS = ("weights", "kv-cache", "graphs")
STREAMS = 6
CARD = 8 * GiB
HOST = 32 * GiB
MOST_LIVE = 120
MOST_POOLS = 6
MOST_RESIDENT_GROWTH = 16 * MiB
MOST_MAPS_GROWTH = 64


@dataclass(frozen=True)
class Engines:
    """Lets functions such as `plimsoll.region` find the allocator (engine) of this program."""

    engine: Engine
    allocator: str = "elastic"

    def open(self, _device: int) -> Engine:
        """Returns this program's engine, for any device."""
        return self.engine

    def opened(self) -> Mapping[int, Engine]:
        """Returns the open engines by device: only this program's engine, on device 0."""
        return {0: self.engine}


@dataclass
class Block:
    """A live block."""

    size: int
    region: str
    pool: MemoryPool | None = None


class Program:
    """A random program that keeps its own list of blocks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = SimulatedMachine([CARD], host_memory=HOST)
        self.gpu = self.machine.gpus[0]
        self.allocator = Allocator(self.gpu, allocator="elastic")
        set_engines(Engines(cast("Engine", self.allocator.engine)))
        self.live: dict[int, Block] = {}
        self.pools: list[MemoryPool] = []
        self.has_graph = False
        self.counts: dict[str, int] = {}
        for name in REGIONS:
            self.take(4 * MiB, name)

    # --- actions ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Makes some requests and frees. Now and then does something else as well."""
        for _ in range(self.random.randrange(4, 24)):
            if len(self.live) < MOST_LIVE and self.random.random() < 0.55:
                self.take(self._size(), self._region())
            elif self.live:
                self.free(self._any())
        for stream in range(STREAMS):
            self.gpu.launch(stream, self.random.uniform(0, 0.4))
        for odds, what in (
            (0.15, self.use_on_another_stream),
            (0.05, self.come_and_go),
            (0.02, self.hold_a_pool),
            (0.03, self.capture_into_a_region),
            (0.05, self.pause_or_resume),
            (0.005, self.change_the_fraction),
            (0.002, self.allocator.empty_cache),
            (0.002, lambda: self.allocator.rebalance()),
        ):
            if self.random.random() < odds:
                what()
        self.machine.advance(self.random.uniform(0.5, 1.5))

    def take(self, size: int, region: str, pool: MemoryPool | None = None) -> None:
        """Requests memory. If the card is full, frees some blocks instead."""
        stream = self.random.randrange(STREAMS)
        try:
            with plimsoll.region(region):
                if pool is None:
                    address = self.allocator.malloc(size, stream=stream)
                else:
                    with self.allocator.use_pool(pool):
                        address = self.allocator.malloc(size, stream=stream)
        except plimsoll.OutOfMemoryError:
            self._shed()
            return
        self.live[address] = Block(self.allocator.block_size(address), region, pool)
        self._count("requests")

    def free(self, address: int) -> None:
        """Frees a block, whether its region is paused or not."""
        self.allocator.free(address)
        del self.live[address]

    def use_on_another_stream(self) -> None:
        """Uses a live block on another stream."""
        if self.live:
            self.allocator.record_stream(self._any(), self.random.randrange(STREAMS))
            self._count("uses by other streams")

    def come_and_go(self) -> None:
        """Makes, uses and releases a pool, as PyTorch does for a CUDA graph with a short life."""
        pool = self.allocator.make_pool()
        self._take_and_free(pool)
        self._release(pool)
        self._count("pools")

    def capture_into_a_region(self) -> None:
        """Allocates from a region's pool, as the capture of a CUDA graph does.

        The pool stays in use, as if the captured graph still existed. The next call ends this use,
        as if a new graph replaced the old one.
        """
        if plimsoll.is_paused("graphs"):
            return
        pool, engine = plimsoll.graph_pool("graphs"), self.allocator.engine
        engine.begin_allocate_to_pool(*pool, stream=None)
        self._take_and_free()
        engine.end_allocate_to_pool(*pool)
        if self.has_graph:
            engine.release_pool(*pool)
        self.has_graph = True
        self._count("graphs in a region")

    def hold_a_pool(self) -> None:
        """Makes a long-lived pool with one block. If MOST_POOLS exist, first releases one."""
        if len(self.pools) == MOST_POOLS:
            pool = self.pools.pop(self.random.randrange(MOST_POOLS))
            for address in [a for a, block in self.live.items() if block.pool is pool]:
                self.free(address)
            self._release(pool)
        self.pools.append(self.allocator.make_pool())
        self.take(self._size(), "", self.pools[-1])
        self._count("pools")

    def pause_or_resume(self) -> None:
        """Pauses some regions, or resumes all paused ones."""
        away = [name for name in REGIONS if plimsoll.is_paused(name)]
        here = [name for name in REGIONS if name not in away]
        names = self.random.sample(here, self.random.randrange(len(here) + 1)) if here else []
        try:
            if away and (not names or self.random.random() < 0.6):
                plimsoll.resume(*away)
                self._count("resumed")
            elif names:
                plimsoll.pause(*names, backup=self.random.choice(("host", "host", "drop")))
                self._count("paused")
        except plimsoll.OutOfMemoryError:
            self._shed()
            self.allocator.set_per_process_memory_fraction(1.0)
        except plimsoll.InputError as error:
            if "has no memory" not in str(error):  # the region's blocks may all have been freed
                raise

    def change_the_fraction(self) -> None:
        """Changes the fraction of the card that the allocator may take."""
        self.allocator.set_per_process_memory_fraction(self.random.choice((0.5, 0.8, 1.0)))
        self._count("fractions")

    # --- checks ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Checks the allocator's data structures, and its statistics against the live blocks."""
        self.allocator.check_invariants()
        alive = sum(block.size for block in self.live.values())
        require(self.allocator.memory_allocated() == alive, "allocated is not what lives")
        stats = self.allocator.engine.statistics()
        uses = [plimsoll.region_uses(name).get(0) for name in REGIONS]
        paused = sum(use.paused_bytes for use in uses if use)
        require(stats["paused_bytes.current"] == paused, "paused is not what regions say")

    def check_reserved(self) -> None:
        """Compares reserved memory with the driver's figure, once no work is pending."""
        self.machine.advance(1000)
        self.allocator.empty_cache()
        require(
            self.allocator.memory_reserved() == self.gpu.dedicated_used_bytes,
            "reserved is not what the driver gave",
        )
        locked = self.allocator.engine.host_reserved_bytes()
        require(self.gpu.shared_used_bytes == locked, "locked is not what the driver locked")

    def end(self) -> None:
        """Frees all blocks, and checks that nothing is left."""
        self.allocator.set_per_process_memory_fraction(1.0)
        for address in list(self.live):
            self.free(address)
        for pool in self.pools:
            self._release(pool)
        if self.has_graph:
            self.allocator.engine.release_pool(*plimsoll.graph_pool("graphs"))
        away = [name for name in REGIONS if plimsoll.is_paused(name)]
        if away:
            plimsoll.resume(*away)
        self.check()
        self.check_reserved()
        left = self.gpu.driver_objects
        require(self.allocator.memory_reserved() == 0, "memory stays reserved")
        require(left.handles == left.mappings == left.events == 0, f"the driver has {left}")

    def footprint(self) -> Footprint:
        """Returns this process's memory. `card` is the memory in use on the simulated card."""
        return Footprint.now(
            page_locked=self.allocator.engine.host_reserved_bytes(),
            card=self.gpu.dedicated_used_bytes,
        )

    def _release(self, pool: MemoryPool) -> None:
        """Releases a pool as PyTorch does: its free memory stays cached."""
        self.allocator.engine.release_pool(*pool.id)
        pool.released = True

    def _take_and_free(self, pool: MemoryPool | None = None) -> None:
        """Allocates up to five blocks, then frees them in the order of their addresses."""
        before = set(self.live)
        for _ in range(self.random.randrange(1, 6)):
            self.take(self._size(), "", pool)
        for address in sorted(set(self.live) - before):
            self.free(address)

    def _shed(self) -> None:
        """Frees a third of all blocks, like a program that reacts to an out-of-memory error."""
        self._count("out of memory")
        for address in self.random.sample(list(self.live), len(self.live) // 3):
            self.free(address)

    def _any(self) -> int:
        return self.random.choice(list(self.live))

    def _size(self) -> int:
        if self.random.random() < 0.5:
            return self.random.randrange(1, MiB)
        return self.random.randrange(MiB, self.random.choice((20, 60, 500)) * MiB)

    def _region(self) -> str:
        usable = [name for name in REGIONS if not plimsoll.is_paused(name)]
        return self.random.choice(usable) if usable and self.random.random() < 0.3 else ""

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def require(holds: bool, what: str) -> None:
    """Ends the program with a one-line message if a check fails."""
    if not holds:
        sys.exit(f"soak_simulated: {what}")


def run(hours: float, seed: int) -> str:
    """Runs the random program, and returns a summary."""
    began = time.monotonic()
    program = Program(seed)
    until, steps = hours * 3600, 0
    before = first = None
    while program.machine.now < until:
        program.step()
        steps += 1
        if steps % 50 == 0:
            program.check()
        if steps % 2000 == 0:
            program.check_reserved()
        objects = program.gpu.driver_objects
        if before is None and program.machine.now >= until / 10:
            before, first = program.footprint(), objects
        elif first is not None:
            require(
                objects.reserved_addresses_bytes <= 2 * first.reserved_addresses_bytes,
                f"the addresses grow: {objects}, at first {first}",
            )
            require(objects.events <= first.events + 64, f"the events grow: {objects}")
    program.check()
    after = program.footprint()
    assert before is not None
    assert first is not None
    growth = after.growth_since(before)
    objects = program.gpu.driver_objects
    program.end()
    require(growth["resident"] <= MOST_RESIDENT_GROWTH, f"resident memory: {growth}")
    require(growth["maps"] <= MOST_MAPS_GROWTH, f"maps: {growth}")
    counts = ", ".join(f"{count} {what}" for what, count in sorted(program.counts.items()))
    seconds = time.monotonic() - began
    return "\n".join(
        [
            f"{hours:g} simulated hours, seed {seed}: {steps} steps in {seconds:.0f} s; {counts}",
            f"after a tenth of it, of the host: {size_text(growth['resident'])} resident, "
            f"{growth['maps']:+} maps, {size_text(growth['page_locked'])} page-locked",
            f"addresses of the driver: {format_size(first.reserved_addresses_bytes)} after a "
            f"tenth, {format_size(objects.reserved_addresses_bytes)} at the end; "
            f"{objects.mappings} mappings, {objects.events} events",
            "statistics agree with the program and the driver; nothing is left at the end",
        ]
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated-hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.simulated_hours <= 0:
        parser.error("some time has to go by: --simulated-hours 1")
    print(run(arguments.simulated_hours, arguments.seed))


if __name__ == "__main__":
    main()
