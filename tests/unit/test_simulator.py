"""Tests that plimsoll's Allocator behaves as articles say of PyTorch's. Needs no PyTorch."""

from __future__ import annotations

from typing import Literal, get_args

import pytest

from plimsoll import (
    Allocator,
    InputError,
    OutOfMemoryError,
    SimulatedGpu,
    SimulatedMachine,
    _core,
)
from plimsoll.base.units import GiB, MiB, format_size
from plimsoll.engine.protocol import AllocatorName
from plimsoll.engine.simulator import allocator as allocator_module


@pytest.fixture
def gpu() -> SimulatedGpu:
    return SimulatedGpu("8GiB")


@pytest.fixture
def allocator(gpu: SimulatedGpu) -> Allocator:
    return Allocator(gpu)


# --- reserved, allocated, cached -----------------------------------------------------------------


def test_a_deleted_tensors_memory_is_kept_and_used_again(allocator: Allocator) -> None:
    first = allocator.malloc(400 * MiB)
    allocator.free(first)
    assert allocator.memory_allocated() == 0
    assert allocator.memory_reserved() == 400 * MiB
    assert allocator.malloc(200 * MiB) == first
    assert allocator.memory_reserved() == 400 * MiB


def test_empty_cache_returns_only_what_is_unused(allocator: Allocator, gpu: SimulatedGpu) -> None:
    kept = allocator.malloc(30 * MiB)
    allocator.free(allocator.malloc(100 * MiB))
    assert gpu.dedicated_used_bytes == 130 * MiB
    allocator.empty_cache()
    assert gpu.dedicated_used_bytes == allocator.memory_reserved() == 30 * MiB
    allocator.free(kept)
    allocator.empty_cache()
    assert gpu.dedicated_used_bytes == 0


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MiB),
        (513, 1024, 2 * MiB),
        (MiB, MiB, 2 * MiB),
        (MiB + 1, MiB + 512, 20 * MiB),
        (10 * MiB - 512, 10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB, 10 * MiB),
        (381 * MiB, 382 * MiB, 382 * MiB),
    ],
)
def test_small_and_large_requests_take_different_segments(
    allocator: Allocator, requested: int, block: int, segment: int
) -> None:
    address = allocator.malloc(requested)
    assert allocator.block_size(address) == block
    assert allocator.memory_reserved() == segment


def test_peaks_last_until_they_are_reset(allocator: Allocator) -> None:
    allocator.free(allocator.malloc(100 * MiB))
    assert allocator.max_memory_allocated() == 100 * MiB
    allocator.reset_peak_memory_stats()
    assert allocator.max_memory_allocated() == 0
    assert allocator.max_memory_reserved() == 100 * MiB
    assert allocator.memory_stats()["allocation.all.allocated"] == 1
    allocator.reset_accumulated_memory_stats()
    assert allocator.memory_stats()["allocation.all.allocated"] == 0


def test_a_leak_shows_against_a_baseline(allocator: Allocator) -> None:
    allocator.malloc(10 * MiB)
    baseline = allocator.memory_allocated()
    history = []
    for _ in range(10):
        allocator.free(allocator.malloc(50 * MiB))
        history.append(allocator.malloc(MiB))
    assert allocator.memory_allocated() - baseline == len(history) * MiB


def test_without_a_cache_each_request_and_each_free_calls_the_driver() -> None:
    def seconds(name: str) -> float:
        gpu = SimulatedGpu("8GiB")
        allocator = Allocator(gpu, allocator=name)  # type: ignore[arg-type]
        for _ in range(10):
            allocator.free(allocator.malloc(400 * MiB))
        assert allocator.memory_stats()["num_device_alloc"] == (10 if name == "uncached" else 1)
        return gpu.driver_seconds

    assert seconds("uncached") > 9 * seconds("native")


# --- limits and out-of-memory errors -------------------------------------------------------------


def test_a_fraction_limits_what_is_reserved(allocator: Allocator) -> None:
    allocator.set_per_process_memory_fraction(0.25)
    allocator.malloc(1536 * MiB)
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(1280 * MiB)
    error = caught.value
    assert (error.requested_bytes, error.limit_bytes) == (1280 * MiB, 2 * GiB)
    assert (error.allocated_bytes, error.reserved_bytes) == (1536 * MiB, 1536 * MiB)
    assert str(error).startswith(
        "CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 8.00 GiB "
        "of which 6.50 GiB is free. Including non-PyTorch memory, this process has 1.50 GiB "
        "memory in use. 2.00 GiB allowed; Of the allocated memory 1.50 GiB is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    allocator.set_per_process_memory_fraction(1)
    allocator.malloc(6 * GiB)


def test_the_cache_is_given_back_before_a_request_fails(allocator: Allocator) -> None:
    for _ in range(2):
        kept = [allocator.malloc(3 * GiB), allocator.malloc(3 * GiB)]
        for address in kept:
            allocator.free(address)
    allocator.malloc(7 * GiB)
    stats = allocator.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)


def test_a_failed_request_changes_nothing(allocator: Allocator) -> None:
    live = allocator.malloc(5 * GiB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(5 * GiB)
    assert allocator.memory_allocated() == 5 * GiB
    allocator.check_invariants()
    allocator.free(live)
    allocator.malloc(5 * GiB)


def test_expandable_segments_waste_less() -> None:
    def reserved(conf: str) -> int:
        allocator = Allocator(SimulatedGpu("8GiB"), conf=conf)
        for size in range(100, 200, 10):
            allocator.free(allocator.malloc(size * MiB))
        return allocator.memory_reserved()

    assert reserved("expandable_segments:True") == 200 * MiB
    assert reserved("") == sum(range(100, 200, 10)) * MiB


# --- streams -------------------------------------------------------------------------------------


def test_a_prefetched_batch_is_not_reused_while_it_is_read(
    allocator: Allocator, gpu: SimulatedGpu
) -> None:
    compute, copies = 0, 7
    batch = allocator.malloc(64 * MiB, stream=copies)
    gpu.launch(compute, seconds=0.010)
    allocator.record_stream(batch, compute)
    allocator.free(batch)
    assert allocator.memory_allocated() == 0
    assert allocator.memory_stats()["active_bytes.all.current"] == 64 * MiB
    assert allocator.malloc(64 * MiB, stream=copies) != batch
    gpu.machine.advance(0.020)
    assert allocator.malloc(64 * MiB, stream=copies) == batch


def test_without_record_stream_only_its_own_stream_reuses_a_block(allocator: Allocator) -> None:
    block = allocator.malloc(64 * MiB, stream=7)
    allocator.free(block)
    assert allocator.malloc(64 * MiB, stream=0) != block
    assert allocator.malloc(64 * MiB, stream=7) == block


def test_empty_cache_waits_for_the_streams(allocator: Allocator, gpu: SimulatedGpu) -> None:
    block = allocator.malloc(64 * MiB)
    gpu.launch(3, seconds=2)
    allocator.record_stream(block, 3)
    allocator.free(block)
    allocator.empty_cache()
    assert gpu.machine.now >= 2
    assert allocator.memory_reserved() == 0


# --- several GPUs, and Windows -------------------------------------------------------------------


def test_each_gpu_has_a_pool_of_its_own() -> None:
    machine = SimulatedMachine(["8GiB", "8GiB"])
    first, second = (Allocator(gpu) for gpu in machine.gpus)
    here, there = first.malloc(GiB), second.malloc(2 * GiB)
    assert here != there
    assert (first.memory_reserved(), second.memory_reserved()) == (GiB, 2 * GiB)
    assert [gpu.dedicated_used_bytes for gpu in machine.gpus] == [GiB, 2 * GiB]
    assert second.memory_summary().count("device ID 1") == 1


def test_windows_goes_on_into_shared_memory() -> None:
    machine = SimulatedMachine(["8GiB", "8GiB"], host_memory="32GiB", driver="wddm")
    gpu, other = machine.gpus
    allocator = Allocator(gpu)
    allocator.malloc(10 * GiB)
    assert (gpu.dedicated_used_bytes, gpu.shared_used_bytes) == (8 * GiB, 2 * GiB)
    pinned = other.pin_memory(13 * GiB)
    assert machine.shared_free_bytes == GiB
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(2 * GiB)
    other.unpin_memory(pinned)
    allocator.malloc(2 * GiB)


def test_linux_does_not() -> None:
    gpu = SimulatedGpu("8GiB", host_memory="32GiB")
    with pytest.raises(OutOfMemoryError):
        Allocator(gpu).malloc(10 * GiB)
    assert gpu.shared_used_bytes == 0


# --- private pools, history, faults --------------------------------------------------------------


def test_a_private_pool_keeps_its_memory_apart(allocator: Allocator) -> None:
    pool = allocator.make_pool()
    with allocator.use_pool(pool):
        inside = allocator.malloc(100 * MiB)
    allocator.free(inside)
    assert allocator.malloc(100 * MiB) != inside
    allocator.empty_cache()
    assert allocator.memory_reserved() == 200 * MiB
    pool.release()
    allocator.empty_cache()
    assert allocator.memory_reserved() == 100 * MiB
    with pytest.raises(InputError, match="pool"):
        pool.release()


def test_a_pool_can_help_out(allocator: Allocator) -> None:
    pool = allocator.make_pool(use_on_oom=True)
    with allocator.use_pool(pool):
        inside = allocator.malloc(6 * GiB)
    allocator.free(inside)
    assert allocator.malloc(6 * GiB) == inside


def test_a_history_keeps_the_newest(allocator: Allocator) -> None:
    allocator.record_memory_history(max_entries=4)
    for size in range(1, 5):
        allocator.free(allocator.malloc(size * MiB))
    trace = allocator.memory_snapshot()["device_traces"][0]
    assert [entry["action"] for entry in trace][-3:] == [
        "alloc",
        "free_requested",
        "free_completed",
    ]
    assert len(trace) == 4


def test_a_driver_that_fails_is_reported_and_recovered_from(
    allocator: Allocator, gpu: SimulatedGpu
) -> None:
    gpu.fail("allocate", after=1)
    allocator.malloc(20 * MiB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(20 * MiB)
    gpu.heal()
    allocator.malloc(20 * MiB)
    allocator.check_invariants()


@pytest.mark.parametrize("name", ["native", "elastic"])
@pytest.mark.parametrize("times", range(1, 7))
def test_memory_that_the_driver_does_not_take_back_at_once_is_not_lost(
    gpu: SimulatedGpu, name: Literal["native", "elastic"], times: int
) -> None:
    allocator = Allocator(gpu, conf="expandable_segments:True", allocator=name)
    free = gpu.free_bytes
    allocator.free(allocator.malloc(512))
    gpu.fail("release", times=times)
    allocator.empty_cache()
    gpu.heal()
    allocator.empty_cache()
    assert gpu.free_bytes == free


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, "0MiB", "12 parsecs", "", "-3MiB", 2**62])
def test_a_size_that_is_none_is_refused(allocator: Allocator, size: int | str) -> None:
    with pytest.raises(InputError):
        allocator.malloc(size)


def test_what_is_not_allocated_cannot_be_freed_or_recorded(allocator: Allocator) -> None:
    block = allocator.malloc(1)
    allocator.free(block)
    for address in (block, block + 512, -5):
        with pytest.raises(InputError, match="is not allocated"):
            allocator.free(address)
        with pytest.raises(InputError, match="is not allocated"):
            allocator.record_stream(address, 1)


def test_nothing_takes_no_block(allocator: Allocator) -> None:
    before = allocator.memory_stats()
    address = allocator.malloc(0)
    assert address == 0  # as of torch.empty(0, device="cuda")
    allocator.record_stream(address, 1)
    allocator.free(address)
    assert allocator.memory_stats() == before


def test_the_allocators_of_the_engine_are_those_of_the_type() -> None:
    assert tuple(_core.allocator_names()) == get_args(AllocatorName)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"conf": "split:1"}, "unknown key 'split'"),
        ({"version": "3.0"}, "unknown PyTorch version"),
        ({"allocator": "magic"}, "unknown allocator"),
        ({"policy": "magic"}, "unknown policy"),
        ({"policy": "spill"}, "the native allocator cannot spill"),
        ({"shared_limit": "1GiB"}, "only the elastic allocator"),
        ({"allocator": "elastic", "shared_limit": "33GiB"}, "more than the machine has: 32.00 GiB"),
        ({"allocator": "elastic", "shared_limit": "-1GiB"}, "not a size"),
    ],
)
def test_a_bad_setting_is_named(
    gpu: SimulatedGpu, arguments: dict[str, str], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        Allocator(gpu, **arguments)  # type: ignore[arg-type]


def test_time_and_fractions_have_bounds(allocator: Allocator, gpu: SimulatedGpu) -> None:
    with pytest.raises(InputError):
        gpu.machine.advance(-1)
    with pytest.raises(InputError):
        allocator.set_per_process_memory_fraction(1.5)
    with pytest.raises(InputError):
        allocator.record_memory_history(max_entries=-1)
    with pytest.raises(InputError):
        SimulatedGpu("8GiB", driver="bsd")  # type: ignore[arg-type]


# --- messages and stacks -------------------------------------------------------------------------

# PyTorch 2.11's message on an H100 with a memory fraction, with {} in place of sizes.
MESSAGE = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of {} of which {} is "
    "free. Including non-PyTorch memory, this process has {} memory in use. {} allowed; Of the "
    "allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
    "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def test_the_error_has_the_text_of_pytorch_and_the_right_numbers(allocator: Allocator) -> None:
    allocator.set_per_process_memory_fraction(1 / 32)
    allocator.malloc(100 * MiB)
    allocator.malloc(3 * MiB)  # gets a segment of 20 MiB
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(151 * MiB)
    sizes = (152 * MiB, 8 * GiB, 8 * GiB - 120 * MiB, 120 * MiB, 256 * MiB, 103 * MiB, 17 * MiB)
    assert str(caught.value) == MESSAGE.format(*map(format_size, sizes))
    error = caught.value
    assert (error.requested_bytes, error.free_bytes) == (151 * MiB, 8 * GiB - 120 * MiB)
    assert (error.allocated_bytes, error.reserved_bytes) == (103 * MiB, 120 * MiB)


def test_the_error_names_private_pools_and_no_limit_where_there_is_none(
    allocator: Allocator,
) -> None:
    with allocator.use_pool(allocator.make_pool()):
        allocator.free(allocator.malloc(64 * MiB))
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(8 * GiB)
    assert "allowed" not in str(caught.value)
    assert (
        "Of the allocated memory 64.00 MiB is allocated by PyTorch, with 64.00 MiB allocated in "
        "private pools (e.g., CUDA Graphs), and 0 bytes is reserved"
    ) in str(caught.value)


def test_without_pinned_memory_the_error_says_what_is_free() -> None:
    gpu = SimulatedGpu("1GiB", host_memory="1GiB", driver="wddm")
    pinned = gpu.pin_memory("300MiB")
    with pytest.raises(
        OutOfMemoryError, match=r"212\.00 MiB of 512\.00 MiB of shared memory is free"
    ):
        gpu.pin_memory("300MiB")
    gpu.unpin_memory(pinned)
    with pytest.raises(InputError, match="is not pinned"):
        gpu.unpin_memory(pinned)


def forward(allocator: Allocator) -> int:
    return allocator.malloc(30 * MiB)


def test_stacks_name_the_lines_of_the_program(allocator: Allocator) -> None:
    allocator.record_memory_history(stacks=True)
    forward(allocator)
    snapshot = allocator.memory_snapshot()
    (segment,) = snapshot["segments"]
    (block,) = segment["blocks"]
    for owner in (segment, block, *snapshot["device_traces"][0]):
        inner, outer = owner["frames"][:2]
        assert inner["filename"] == outer["filename"] == __file__
        assert (inner["name"], inner["line"]) == ("forward", forward.__code__.co_firstlineno + 1)
        assert outer["name"] == "test_stacks_name_the_lines_of_the_program"


def test_what_empty_cache_frees_is_not_laid_to_an_earlier_call(allocator: Allocator) -> None:
    def use_and_drop() -> None:
        allocator.free(allocator.malloc(30 * MiB))

    allocator.record_memory_history(stacks=True)
    use_and_drop()
    allocator.empty_cache()
    last = allocator.memory_snapshot()["device_traces"][0][-1]
    assert last["action"] == "segment_free"
    assert last["frames"][0]["name"].startswith("test_what_empty_cache_frees")


def test_stacks_are_kept_only_if_asked_for(allocator: Allocator) -> None:
    allocator.record_memory_history(stacks=True)
    forward(allocator)
    allocator.record_memory_history()
    forward(allocator)
    assert not any(event["frames"] for event in allocator.memory_snapshot()["device_traces"][0])


def test_recording_ends_and_starts_anew(allocator: Allocator) -> None:
    def actions() -> list[str]:
        return [event["action"] for event in allocator.memory_snapshot()["device_traces"][0]]

    allocator.malloc(1)
    assert actions() == []
    allocator.record_memory_history()
    allocator.malloc(1)
    assert actions() == ["alloc"]
    assert actions() == ["alloc", "snapshot"]
    allocator.record_memory_history(max_entries=0)
    allocator.malloc(1)
    assert actions() == []


# --- further tests of pools ----------------------------------------------------------------------


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_released_pool_lives_as_long_as_a_block_of_it(gpu: SimulatedGpu, conf: str) -> None:
    allocator = Allocator(gpu, conf=conf)
    pool = allocator.make_pool()
    with allocator.use_pool(pool):
        allocator.free(allocator.malloc(60 * MiB))
        tensor = allocator.malloc(20 * MiB)
    pool.release()
    allocator.empty_cache()
    (segment,) = allocator.memory_snapshot()["segments"]
    assert segment["segment_pool_id"] == pool.id
    allocator.free(tensor)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0


def test_a_pool_may_serve_one_stream_only(allocator: Allocator) -> None:
    pool = allocator.make_pool()
    with allocator.use_pool(pool, stream=1):
        allocator.malloc(512, stream=1)
        allocator.malloc(512, stream=2)
    segments = allocator.memory_snapshot()["segments"]
    owners = {segment["stream"]: segment["segment_pool_id"] for segment in segments}
    assert owners == {1: pool.id, 2: (0, 0)}


def test_only_a_pool_made_for_it_helps_out(allocator: Allocator) -> None:
    with allocator.use_pool(allocator.make_pool()):
        allocator.free(allocator.malloc(6 * GiB))
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(6 * GiB)


def test_blocks_of_a_pool_can_be_kept_whole(allocator: Allocator) -> None:
    with allocator.use_pool(allocator.make_pool(no_split=True)):
        assert allocator.block_size(allocator.malloc(3 * MiB)) == 20 * MiB


def test_a_pool_is_released_once_and_not_used_afterwards(allocator: Allocator) -> None:
    pool = allocator.make_pool()
    with allocator.use_pool(pool):
        with pytest.raises(InputError, match="already"), allocator.use_pool(pool):
            pass
        pool.release()
        with pytest.raises(InputError, match="released already"):
            pool.release()
    with pytest.raises(InputError, match="was released"), allocator.use_pool(pool):
        pass
    with pytest.raises(InputError, match="no private pools"):
        Allocator(allocator.gpu, allocator="uncached").make_pool(no_split=True)


# --- PyTorch on Windows --------------------------------------------------------------------------


def is_expandable(allocator: Allocator) -> bool:
    allocator.malloc("30MiB")
    (segment,) = allocator.memory_snapshot()["segments"]
    return bool(segment["is_expandable"])


def on_windows(conf: str = "") -> Allocator:
    machine = SimulatedMachine(["8GiB"], host_memory="16GiB", driver="wddm")
    return Allocator(machine.gpus[0], conf=conf)


@pytest.fixture
def _nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_module, "_warned", {})


@pytest.mark.usefixtures("_nothing_warned")
def test_windows_ignores_expandable_segments_with_a_warning(gpu: SimulatedGpu) -> None:
    assert is_expandable(Allocator(gpu, conf="expandable_segments:True"))
    with pytest.warns(UserWarning, match="expandable_segments not supported on this platform"):
        allocator = on_windows("expandable_segments:True,max_split_size_mb:64")
    assert not is_expandable(allocator)
    assert allocator.config.max_split_size == 64 * MiB


@pytest.mark.usefixtures("_nothing_warned")
def test_windows_ignores_expandable_segments_in_later_settings() -> None:
    allocator = on_windows()
    with pytest.warns(UserWarning, match="in WSL PyTorch follows it"):
        allocator.configure("expandable_segments:True")
    assert not is_expandable(allocator)
