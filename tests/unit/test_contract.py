"""The contract that every allocator keeps on every driver.

Random programs run on a small GPU whose driver fails at times, beside a model that knows nothing of
segments or caches: which addresses are alive, and until when which stream may still use the rest.
A new policy, or a new driver, is one more line here.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from plimsoll import Allocator, MemoryPool, OutOfMemoryError, SimulatedGpu
from plimsoll.units import MiB
from tests.unit.programs import SECONDS, SIZES, STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.machine import CallName, DriverName

POLICIES: dict[str, Callable[[SimulatedGpu], Allocator]] = {
    "native": Allocator,
    "native-split": partial(Allocator, conf="max_split_size_mb:64"),
    "native-rounded": partial(Allocator, conf="roundup_power2_divisions:4"),
    "native-expandable": partial(Allocator, conf="expandable_segments:True"),
    "native-collected": partial(Allocator, conf="garbage_collection_threshold:0.6"),
    "uncached": partial(Allocator, policy="uncached"),
}
DRIVERS: tuple[DriverName, ...] = ("linux", "wddm")

GPU_BYTES = 256 * MiB
SHARED_BYTES = 128 * MiB
FAULTS: tuple[CallName, ...] = ("allocate", "reserve", "create", "map", "set_access")


def most_for(size: int) -> int:
    """No policy asks the driver for more than this to serve a request of `size` bytes."""
    return 2 * size + 20 * MiB


@dataclass
class Live:
    """An allocation as the program sees it."""

    requested: int
    size: int
    stream: int
    users: set[int] = field(default_factory=set)


@dataclass
class Freed:
    """Memory that was given back, and when the work queued on it by then is done, by stream."""

    begin: int
    end: int
    done: dict[int, float]


class Contract(RuleBasedStateMachine):
    """What a program may do to an allocator, and what it may count on."""

    policy: ClassVar[str]
    driver: ClassVar[DriverName]

    def __init__(self) -> None:
        super().__init__()
        self.gpu = SimulatedGpu(GPU_BYTES, host_memory=2 * SHARED_BYTES, driver=self.driver)
        self.allocator = POLICIES[self.policy](self.gpu)
        self.live: dict[int, Live] = {}
        self.freed: list[Freed] = []
        self.busy_until = dict.fromkeys(range(4), 0.0)
        self.pools: list[MemoryPool] = []
        self.inside = ExitStack()
        self.in_pool = False
        self.faulty = False
        self.ooms = 0
        self.peaks = {"allocated_bytes": 0, "active_bytes": 0, "requested_bytes": 0}

    # --- what a program does ---------------------------------------------------------------------

    @rule(size=SIZES, stream=STREAMS)
    def malloc(self, size: int, stream: int) -> None:
        allocated = self.allocator.memory_allocated()
        try:
            address = self.allocator.malloc(size, stream=stream)
        except OutOfMemoryError:
            self.ooms += 1
            assert self.faulty or self.available() < most_for(size)
            assert self.allocator.memory_allocated() == allocated
        except RuntimeError:  # no address space: not a matter of memory
            assert self.faulty
            assert self.allocator.memory_allocated() == allocated
        else:
            block = Live(size, self.allocator.block_size(address), stream)
            self.check_stream_order(address, block)
            self.live[address] = block

    def available(self) -> int:
        """What the driver and the limit would still give."""
        free = self.gpu.free_bytes
        if self.driver == "wddm":
            free += self.gpu.machine.shared_free_bytes
        limit = self.allocator.limit_bytes
        return free if limit is None else min(free, limit - self.allocator.memory_reserved())

    def check_stream_order(self, address: int, block: Live) -> None:
        now = self.gpu.machine.now + 1e-8
        for freed in self.freed:
            if freed.begin < address + block.size and address < freed.end:
                for stream, done in freed.done.items():
                    assert stream == block.stream or done <= now, "still in use by another stream"

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = self.pick(data)
        self.allocator.free(address)
        block = self.live.pop(address)
        done = {stream: self.busy_until[stream] for stream in {block.stream, *block.users}}
        self.freed.append(Freed(address, address + block.size, done))

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(list(self.live)))

    # PyTorch takes what is recorded while a pool is in use to be ordered by a graph capture.
    @precondition(lambda self: self.live and not self.in_pool)
    @rule(data=st.data(), stream=STREAMS)
    def record_stream(self, data: st.DataObject, stream: int) -> None:
        address = self.pick(data)
        self.allocator.record_stream(address, stream)
        self.live[address].users.add(stream)

    @rule(stream=STREAMS, seconds=SECONDS)
    def launch(self, stream: int, seconds: float) -> None:
        self.gpu.launch(stream, seconds)
        self.busy_until[stream] = max(self.busy_until[stream], self.gpu.machine.now) + seconds

    @rule(seconds=SECONDS)
    def advance(self, seconds: float) -> None:
        self.gpu.machine.advance(seconds)

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()

    @rule(fraction=st.sampled_from([0.25, 0.5, 0.9, 1.0]))
    def limit(self, fraction: float) -> None:
        self.allocator.set_per_process_memory_fraction(fraction)

    @rule(call=st.sampled_from(FAULTS), after=st.integers(0, 3), times=st.integers(1, 3))
    def fail(self, call: CallName, after: int, times: int) -> None:
        self.gpu.fail(call, after=after, times=times)
        self.faulty = True

    @rule()
    def heal(self) -> None:
        self.gpu.heal()
        self.faulty = False

    @rule()
    def make_pool(self) -> None:
        self.leave_pool()
        self.pools.append(self.allocator.make_pool())

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), stream=st.none() | STREAMS)
    def enter_pool(self, data: st.DataObject, stream: int | None) -> None:
        self.leave_pool()
        pool = data.draw(st.sampled_from(self.pools))
        self.inside.enter_context(self.allocator.use_pool(pool, stream=stream))
        self.in_pool = True

    @rule()
    def leave_pool(self) -> None:
        self.inside.close()
        self.in_pool = False

    @precondition(lambda self: self.pools)
    @rule(data=st.data())
    def release_pool(self, data: st.DataObject) -> None:
        self.leave_pool()
        self.pools.pop(data.draw(st.integers(0, len(self.pools) - 1))).release()

    @rule()
    def reset_peaks(self) -> None:
        self.allocator.reset_peak_memory_stats()
        self.peaks = dict.fromkeys(self.peaks, 0)

    # --- what holds after each step --------------------------------------------------------------

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

        reserved = sum(segment["total_size"] for segment in segments)
        assert reserved == sum(block["size"] for block in blocks)
        assert stats["reserved_bytes.all.current"] == reserved
        assert stats["active_bytes.all.current"] == sum(block["size"] for block in active)
        assert stats["requested_bytes.all.current"] == sum(b["requested_size"] for b in active)
        assert stats["active.all.current"] == len(active)
        assert stats["num_ooms"] == self.ooms

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
        """What the program gives back goes back to the driver, to the last byte."""
        self.gpu.heal()
        self.leave_pool()
        for pool in self.pools:
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
    class Chosen(Contract):
        policy = chosen_policy
        driver = chosen_driver

    run_state_machine_as_test(Chosen)
