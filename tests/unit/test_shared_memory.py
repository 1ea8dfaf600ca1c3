"""Tests dedicated and shared memory, under Windows' driver and the elastic allocator.

The first four tests are the experiments of an article on GPU memory in modern Windows: dedicated
memory only, page-locked memory, dedicated memory that spills into shared memory, and a request for
more than dedicated and shared memory together.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from plimsoll import Allocator, InputError, OutOfMemoryError, SimulatedGpu
from plimsoll.base.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS: dict[str, Callable[[], Allocator]] = {
    "native": lambda: Allocator(SimulatedGpu("8GiB", host_memory="32GiB", driver="wddm")),
    "elastic": lambda: Allocator(
        SimulatedGpu("8GiB", host_memory="32GiB"), allocator="elastic", policy="spill"
    ),
    "elastic, wddm": lambda: Allocator(
        SimulatedGpu("8GiB", host_memory="32GiB", driver="wddm"), allocator="elastic"
    ),
}


@pytest.fixture(params=WAYS)
def allocator(request: pytest.FixtureRequest) -> Allocator:
    return WAYS[request.param]()


def used(allocator: Allocator) -> tuple[int, int]:
    return allocator.gpu.dedicated_used_bytes, allocator.gpu.shared_used_bytes


def shared(allocator: Allocator) -> int:
    return allocator.memory_stats()["shared_allocated_bytes.current"]


# --- the four experiments ------------------------------------------------------------------------


def test_what_fits_is_in_dedicated_memory_alone(allocator: Allocator) -> None:
    allocator.malloc("4GiB")
    assert used(allocator) == (4 * GiB, 0)
    assert shared(allocator) == 0


def test_page_locked_memory_counts_as_shared(allocator: Allocator) -> None:
    pinned = allocator.gpu.pin_memory("4GiB")
    assert used(allocator) == (0, 4 * GiB)
    # page-locked memory does not count as spilled
    assert allocator.memory_stats()["shared_reserved_bytes.current"] == 0
    with pytest.raises(OutOfMemoryError):
        allocator.gpu.pin_memory("13GiB")
    allocator.gpu.unpin_memory(pinned)
    allocator.gpu.pin_memory("13GiB")


def test_beyond_dedicated_memory_it_goes_on_in_shared_memory(allocator: Allocator) -> None:
    block = allocator.malloc("20GiB")
    assert used(allocator) == (8 * GiB, 12 * GiB)
    assert shared(allocator) == 12 * GiB
    allocator.free(block)
    assert shared(allocator) == 0
    allocator.empty_cache()
    assert used(allocator) == (0, 0)


def test_more_than_both_is_refused_and_nothing_is_lost(allocator: Allocator) -> None:
    kept = allocator.malloc("1GiB")
    with pytest.raises(OutOfMemoryError):
        allocator.malloc("24GiB")
    assert used(allocator) == (GiB, 0)
    allocator.malloc("23GiB")
    assert used(allocator) == (8 * GiB, 16 * GiB)
    allocator.free(kept)


# --- reports about shared memory -----------------------------------------------------------------


def test_the_counters_tell_both_tiers(allocator: Allocator) -> None:
    first = allocator.malloc("6GiB")
    second = allocator.malloc("6GiB")
    allocator.free(second)
    stats = allocator.memory_stats()
    assert stats["num_spills"] == 1
    assert stats["shared_allocated_bytes.peak"] == 4 * GiB
    assert stats["shared_allocated_bytes.current"] == 0
    assert stats["reserved_bytes.all.peak"] == 12 * GiB
    assert stats["shared_reserved_bytes.peak"] == 4 * GiB
    allocator.free(first)
    allocator.reset_peak_memory_stats()
    allocator.reset_accumulated_memory_stats()
    stats = allocator.memory_stats()
    assert stats["shared_allocated_bytes.peak"] == stats["num_spills"] == 0


def test_the_least_that_it_costs_is_told(allocator: Allocator) -> None:
    for _ in range(3):
        allocator.free(allocator.malloc("10GiB"))
    use = allocator.shared_use()
    assert use is not None
    assert (use.num_spills, use.spilled_bytes) == (3, 6 * GiB)
    assert (use.peak_dedicated_bytes, use.peak_bytes) == (8 * GiB, 2 * GiB)
    assert use.transfer_seconds == pytest.approx(2 * 6 * GiB / 55e9)
    if allocator.name == "elastic":
        assert use.host_memory_seconds == pytest.approx(2 * GiB / 5.65e9)
        assert allocator.gpu.driver_seconds > 2 * GiB / 5.65e9
    else:
        assert use.host_memory_seconds is None  # its cost on Windows was never measured


def test_a_snapshot_tells_how_much_of_each_block_is_shared(allocator: Allocator) -> None:
    allocator.record_memory_history()
    for size in ("5GiB", "5GiB", "1GiB"):
        allocator.malloc(size)
    snapshot = allocator.memory_snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    assert sorted(block.get("shared_size") or 0 for block in live) == [0, GiB, 2 * GiB]
    assert sum("shared_size" in block for block in live) == 2
    assert sum(segment.get("shared_size", 0) for segment in snapshot["segments"]) == 3 * GiB
    events = [event for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
    assert [event.get("shared_size") for event in events] == [None, 2 * GiB, GiB]


def test_the_summary_ends_with_the_tiers(allocator: Allocator) -> None:
    allocator.malloc("10GiB")
    end = allocator.memory_summary().splitlines()[-3:]
    assert end[0].startswith("dedicated: 8.00 GiB reserved, 8.00 GiB of it allocated; 0 bytes of ")
    assert end[1] == (
        "shared: 2.00 GiB reserved, 2.00 GiB of it allocated, 0 bytes page-locked for copies; "
        "14.00 GiB of the host's 16.00 GiB free"
    )
    assert end[2].startswith("spilled: 1 request found too little dedicated memory;")
    alone = Allocator(SimulatedGpu("8GiB"))
    assert "shared" not in alone.memory_summary()
    assert "num_spills" not in alone.memory_stats()


# --- further abilities of the elastic allocator --------------------------------------------------


@pytest.fixture
def elastic() -> Allocator:
    return WAYS["elastic"]()


def test_blocks_come_back_to_dedicated_memory_at_their_addresses(elastic: Allocator) -> None:
    large = elastic.malloc("8GiB")
    spilled = [elastic.malloc("512MiB") for _ in range(4)]
    elastic.free(large)
    elastic.empty_cache()
    assert elastic.rebalance("1GiB") == GiB
    assert shared(elastic) == GiB
    assert elastic.rebalance() == GiB
    assert used(elastic) == (2 * GiB, 0)
    for address in spilled:
        elastic.free(address)


def test_shared_memory_has_a_limit_of_its_own(elastic: Allocator) -> None:
    elastic.set_shared_limit("2GiB")
    assert elastic.shared_limit_bytes == 2 * GiB
    with pytest.raises(OutOfMemoryError):
        elastic.malloc("11GiB")
    elastic.malloc("10GiB")
    elastic.set_shared_limit(None)
    elastic.malloc("1GiB")
    assert used(elastic) == (8 * GiB, 3 * GiB)


def test_a_limit_of_dedicated_memory_spills_earlier(elastic: Allocator) -> None:
    elastic.set_per_process_memory_fraction(0.25)
    elastic.malloc("3GiB")
    assert used(elastic) == (2 * GiB, GiB)


def test_both_tiers_are_named_when_both_are_spent(elastic: Allocator) -> None:
    elastic.malloc("23GiB")
    with pytest.raises(OutOfMemoryError) as caught:
        elastic.malloc("2GiB")
    text = str(caught.value)
    assert "shared memory" in text.lower()
    assert "8.00 GiB" in text
    assert "16.00 GiB" in text


def test_strict_is_the_default_and_leaves_shared_memory_alone() -> None:
    allocator = Allocator(SimulatedGpu("8GiB"), allocator="elastic")
    assert allocator.policy == "strict"
    assert allocator.shared_use() is None
    with pytest.raises(OutOfMemoryError):
        allocator.malloc("9GiB")


def test_what_cannot_be_is_refused() -> None:
    linux = SimulatedGpu("8GiB", host_memory="32GiB")
    windows = SimulatedGpu("8GiB", host_memory="32GiB", driver="wddm")
    elastic = partial(Allocator, linux, allocator="elastic", policy="spill")
    for make, expected in (
        (partial(Allocator, windows, policy="strict"), "spills by itself"),
        (partial(Allocator, linux, policy="spill"), "cannot spill"),
        (partial(elastic, shared_limit="17GiB"), "more than the machine has: 16.00 GiB"),
        (partial(elastic, shared_limit=-1), "above zero"),
        (partial(Allocator, windows, shared_limit="1GiB"), "only the elastic allocator"),
        (lambda: Allocator(linux).rebalance(), "cannot move live blocks"),
        (lambda: elastic().rebalance(-1), "above zero"),
        (lambda: Allocator(linux, policy="sometimes"), "unknown policy 'sometimes'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=expected):
            make()


def test_pieces_of_cached_memory_stay_in_their_tier(allocator: Allocator) -> None:
    """Requests 64 MiB twice. The second request reuses a cached block, but counts as a spill."""
    first = allocator.malloc("8GiB")
    for _ in range(2):
        allocator.free(allocator.malloc("64MiB"))
    assert allocator.memory_stats()["num_spills"] == 2
    assert shared(allocator) == 0
    assert allocator.memory_reserved() == 8 * GiB + 64 * MiB
    allocator.free(first)
