"""Tests the contract that every allocator keeps on every driver.

Random programs run on a small GPU whose driver fails at times. A simple model without segments and
caches runs beside them. The model knows the live addresses, and the streams that may still use
freed memory. To test a new allocator, policy or driver, add it to POLICIES or DRIVERS.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from plimsoll import Allocator, OutOfMemoryError, SimulatedGpu
from plimsoll.base.units import MiB
from plimsoll.torch.building.versions import is_cuda_build
from plimsoll.torch.wheel.own_allocator import own_allocator
from tests.unit import random_programs
from tests.unit.random_programs import (
    POOLS,
    STREAMS,
    Advance,
    EmptyCache,
    Free,
    Launch,
    Malloc,
    RecordStream,
    ReleasePool,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll import MemoryPool
    from plimsoll.engine.simulator.machine import CallName, DriverName

POLICIES: dict[str, Callable[[SimulatedGpu], Allocator]] = {
    "native": Allocator,
    "native-split": partial(Allocator, conf="max_split_size_mb:64"),
    "native-rounded": partial(Allocator, conf="roundup_power2_divisions:4"),
    "native-expandable": partial(Allocator, conf="expandable_segments:True"),
    "native-collected": partial(Allocator, conf="garbage_collection_threshold:0.6"),
    "elastic": partial(Allocator, allocator="elastic"),
    "elastic-spill": partial(Allocator, allocator="elastic", policy="spill"),
    "uncached": partial(Allocator, allocator="uncached"),
    "wheel": lambda gpu: Allocator(gpu, wheel=own_allocator()),
}
DRIVERS: tuple[DriverName, ...] = ("linux", "wddm")

GPU_BYTES = 256 * MiB
SHARED_BYTES = 128 * MiB
FAULTS: tuple[CallName, ...] = ("allocate", "reserve", "create", "map", "set_access")


def most_for(size: int) -> int:
    """Returns the most bytes that any policy asks the driver for, to serve a request of `size`."""
    return 2 * size + 20 * MiB


# --- steps only for this suite ------------------------------------------------------------------


@dataclass(frozen=True)
class EnterPool:
    """Makes a pool serve the later requests of `stream` (None: of all streams)."""

    pool: int
    stream: int | None


@dataclass(frozen=True)
class LeavePool:
    pass


@dataclass(frozen=True)
class Limit:
    fraction: float


@dataclass(frozen=True)
class Fail:
    call: CallName
    after: int


@dataclass(frozen=True)
class Heal:
    pass


@dataclass(frozen=True)
class ResetPeaks:
    pass


@dataclass(frozen=True)
class Rebalance:
    pass


Step = random_programs.Step | EnterPool | LeavePool | Limit | Fail | Heal | ResetPeaks | Rebalance
STEPS: st.SearchStrategy[Step] = random_programs.weighted(
    (14, random_programs.steps(pools=True, empty_cache=True)),
    (1, st.builds(EnterPool, POOLS, st.none() | STREAMS)),
    (1, st.just(LeavePool())),
    (1, st.builds(Limit, st.sampled_from([0.25, 0.5, 0.9, 1.0])) | st.just(ResetPeaks())),
    (1, st.just(Rebalance())),
    (1, st.builds(Fail, st.sampled_from(FAULTS), st.integers(0, 3)) | st.just(Heal())),
)


@dataclass
class Live:
    """An allocation as the program sees it."""

    requested: int
    size: int
    stream: int
    users: set[int] = field(default_factory=set)


@dataclass
class Freed:
    """Freed memory, and the times at which the streams' queued work on the memory ends."""

    begin: int
    end: int
    done: dict[int, float]


class Contract(RuleBasedStateMachine):
    """Uses an allocator as a program does, and checks the guarantees that programs rely on."""

    policy: ClassVar[str]
    driver: ClassVar[DriverName]

    def __init__(self) -> None:
        super().__init__()
        self.gpu = SimulatedGpu(GPU_BYTES, host_memory=2 * SHARED_BYTES, driver=self.driver)
        self.allocator = POLICIES[self.policy](self.gpu)
        self.live: dict[int, Live] = {}
        self.freed: list[Freed] = []
        self.busy_until = dict.fromkeys(range(4), 0.0)
        self.pools: dict[int, MemoryPool] = {}
        self.pool_ids = {(0, 0)}
        self.inside = ExitStack()
        self.in_pool = False
        self.faulty = False
        self.ooms = 0
        self.peaks = {"allocated_bytes": 0, "active_bytes": 0, "requested_bytes": 0}

    @rule(step=STEPS)
    def step(self, step: Step) -> None:
        match step:
            case Malloc(size, stream):
                self.malloc(size, stream)
            case Free(which) if self.live:
                self.free(self.pick(which))
            case RecordStream(which, stream) if self.live and not self.in_pool:
                # While a pool is in use, the test does not call record_stream: for a pool, PyTorch
                # assumes that a graph capture orders the streams.
                self.allocator.record_stream(self.pick(which), stream)
                self.live[self.pick(which)].users.add(stream)
            case Launch(stream, seconds):
                self.gpu.launch(stream, seconds)
                self.busy_until[stream] = max(self.busy_until[stream], self.now) + seconds
            case Advance(seconds):
                self.gpu.machine.advance(seconds)
            case EmptyCache():
                self.allocator.empty_cache()
            case EnterPool(pool, stream):
                self.leave_pool()
                self.enter_pool(pool, stream)
            case LeavePool():
                self.leave_pool()
            case ReleasePool(pool) if pool in self.pools:
                self.leave_pool()
                self.pools.pop(pool).release()
            case Limit(fraction):
                self.allocator.set_per_process_memory_fraction(fraction)
            case Fail(call, after):
                self.gpu.fail(call, after=after, times=2)
                self.faulty = True
            case Heal():
                self.gpu.heal()
                self.faulty = False
            case ResetPeaks():
                self.allocator.reset_peak_memory_stats()
                self.peaks = dict.fromkeys(self.peaks, 0)
            case Rebalance() if self.allocator.name == "elastic":
                self.rebalance()

    def malloc(self, size: int, stream: int) -> None:
        allocated = self.allocator.memory_allocated()
        try:
            address = self.allocator.malloc(size, stream=stream)
        except OutOfMemoryError:
            self.ooms += 1
            assert self.faulty or self.available() < most_for(size)
            assert self.allocator.memory_allocated() == allocated
        except RuntimeError:  # reserving address space failed, which is no out-of-memory error
            assert self.faulty
            assert self.allocator.memory_allocated() == allocated
        else:
            block = Live(size, self.allocator.block_size(address), stream)
            self.check_stream_order(address, block)
            self.live[address] = block

    def rebalance(self) -> None:
        before = self.allocator.memory_stats().get("shared_reserved_bytes.current", 0)
        moved = 0
        try:
            moved = self.allocator.rebalance()
        except RuntimeError:
            assert self.faulty
        else:
            after = self.allocator.memory_stats().get("shared_reserved_bytes.current", 0)
            assert moved == before - after

    def available(self) -> int:
        """Returns the bytes that the driver and the limit still allow."""
        dedicated = self.gpu.free_bytes
        shared = self.gpu.machine.shared_free_bytes if self.allocator.policy == "spill" else 0
        limit = self.allocator.limit_bytes
        if limit is None:
            return dedicated + shared
        left = limit - self.allocator.memory_reserved()
        if self.allocator.name != "elastic" or shared == 0:
            return min(dedicated + shared, left)
        left += self.allocator.memory_stats()["shared_reserved_bytes.current"]
        # the elastic allocator's limit applies to dedicated memory only
        return min(dedicated, max(left, 0)) + shared

    def check_stream_order(self, address: int, block: Live) -> None:
        for freed in self.freed:
            if freed.begin < address + block.size and address < freed.end:
                for stream, done in freed.done.items():
                    if stream != block.stream:
                        assert done <= self.now + 1e-8, "another stream still uses it"

    def free(self, address: int) -> None:
        self.allocator.free(address)
        block = self.live.pop(address)
        done = {stream: self.busy_until[stream] for stream in {block.stream, *block.users}}
        self.freed.append(Freed(address, address + block.size, done))

    def pick(self, which: int) -> int:
        return list(self.live)[which % len(self.live)]

    def enter_pool(self, which: int, stream: int | None) -> None:
        if which not in self.pools:
            self.pools[which] = self.allocator.make_pool()
            self.pool_ids.add(self.pools[which].id)
        self.inside.enter_context(self.allocator.use_pool(self.pools[which], stream=stream))
        self.in_pool = True

    def leave_pool(self) -> None:
        self.inside.close()
        self.in_pool = False

    @property
    def now(self) -> float:
        return self.gpu.machine.now

    # --- checks after each step ------------------------------------------------------------------

    @invariant()
    def live_blocks_are_whole_aligned_and_apart(self) -> None:
        end = 0
        for address, block in sorted(self.live.items()):
            assert address >= end
            assert address % 512 == 0
            assert block.size % 512 == 0
            assert block.size >= block.requested
            assert self.allocator.block_size(address) == block.size
            end = address + block.size

    @invariant()
    def no_byte_is_lost(self) -> None:
        stats = self.allocator.memory_stats()
        segments = self.allocator.memory_snapshot()["segments"]
        blocks = [block for segment in segments for block in segment["blocks"]]
        active = [block for block in blocks if block["state"] != "inactive"]
        live = {
            block["address"]: (block["requested_size"], block["size"])
            for block in blocks
            if block["state"] == "active_allocated"
        }
        assert live == {at: (block.requested, block.size) for at, block in self.live.items()}
        assert stats["allocated_bytes.all.current"] == sum(b.size for b in self.live.values())
        assert stats["allocation.all.current"] == len(self.live)

        assert self.pool_ids >= {segment["segment_pool_id"] for segment in segments}
        reserved = sum(segment["total_size"] for segment in segments)
        assert reserved == sum(block["size"] for block in blocks)
        assert stats["reserved_bytes.all.current"] == reserved
        assert stats["active_bytes.all.current"] == sum(block["size"] for block in active)
        assert stats["requested_bytes.all.current"] == sum(b["requested_size"] for b in active)
        assert stats["active.all.current"] == len(active)
        assert stats["num_ooms"] == self.ooms

    @invariant()
    def each_byte_is_in_one_tier(self) -> None:
        segments = self.allocator.memory_snapshot()["segments"]
        blocks = [block for segment in segments for block in segment["blocks"]]
        live = [block for block in blocks if block["state"] == "active_allocated"]
        assert all(0 <= block.get("shared_size", 0) <= block["size"] for block in blocks)
        assert all(segment.get("shared_size", 0) <= segment["total_size"] for segment in segments)
        if self.allocator.policy == "strict":
            assert self.gpu.shared_used_bytes == 0
            return
        stats = self.allocator.memory_stats()
        in_blocks = sum(block.get("shared_size", 0) for block in live)
        in_segments = sum(segment.get("shared_size", 0) for segment in segments)
        assert stats["shared_allocated_bytes.current"] == in_blocks
        assert stats["shared_reserved_bytes.current"] == self.gpu.shared_used_bytes
        assert stats["shared_reserved_bytes.current"] >= in_segments

    @invariant()
    def counters_add_up(self) -> None:
        stats = self.allocator.memory_stats()
        for key, value in stats.items():
            name, _, column = key.rpartition(".")
            if column != "current":
                continue
            assert value == stats[f"{name}.allocated"] - stats[f"{name}.freed"], name
            assert 0 <= value <= stats[f"{name}.peak"], name
            if name.endswith(".all"):
                parts = (name.replace(".all", pool) for pool in (".small_pool", ".large_pool"))
                assert value == sum(stats[f"{part}.current"] for part in parts), name

    @invariant()
    def peaks_are_the_most_that_was_seen(self) -> None:
        stats = self.allocator.memory_stats()
        for key, peak in self.peaks.items():
            self.peaks[key] = max(peak, stats[f"{key}.all.current"])
            assert stats[f"{key}.all.peak"] == self.peaks[key], key

    @invariant()
    def its_own_books_are_in_order(self) -> None:
        self.allocator.check_invariants()

    def teardown(self) -> None:
        """Frees everything, and checks that the driver gets all memory back, to the last byte."""
        self.gpu.heal()
        self.leave_pool()
        for pool in self.pools.values():
            pool.release()
        for address in self.live:
            self.allocator.free(address)
        self.gpu.synchronize()
        self.allocator.empty_cache()
        assert self.allocator.memory_reserved() == 0
        assert (self.gpu.dedicated_used_bytes, self.gpu.shared_used_bytes) == (0, 0)


@pytest.mark.parametrize("chosen_driver", DRIVERS)
@pytest.mark.parametrize("chosen_policy", POLICIES)
def test_an_allocator_keeps_the_contract(chosen_policy: str, chosen_driver: DriverName) -> None:
    if chosen_policy == "wheel" and (find_spec("torch") is None or not is_cuda_build()):
        pytest.skip("no CUDA build of PyTorch is installed")
    if (chosen_policy, chosen_driver) == ("native-expandable", "wddm"):
        pytest.skip("PyTorch on Windows ignores that segments are to be expandable")

    class Chosen(Contract):
        policy = chosen_policy
        driver = chosen_driver

    run_state_machine_as_test(Chosen)
