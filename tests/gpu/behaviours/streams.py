"""Behaviours of memory that several streams and threads use."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.gpu.behaviours.behaviour import Observed, anything, at_most, behaviour
from tests.gpu.behaviours.tools import MIB, SHORT_SLEEP_CYCLES, blocks, empty, error_of, stat

ELEMENTS = 16 * MIB  # floats, 64 MiB


def full(value: float, elements: int = ELEMENTS) -> Any:
    """Returns a tensor filled with one value."""
    return torch.full((elements,), value, device="cuda")


def all_equal(tensor: Any, value: float) -> bool:
    """Returns whether every element has this value."""
    return bool((tensor == value).all().item())


def in_threads(*functions: Callable[[], object]) -> list[str]:
    """Calls the functions in parallel, each in its own thread. Returns the errors they raised."""
    problems: list[str] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


@behaviour()
def recorded_streams_hold_memory_back() -> Observed:
    # `spare` fills PyTorch's cache, so that the allocation of `z` does not call the driver. The
    # driver might wait for the sleeping kernel.
    side = torch.cuda.Stream()
    x, spare = full(1.0), full(0.0)
    with torch.cuda.stream(side):
        y = full(0.0)
    torch.mul(spare, 2, out=spare)  # loads the kernel now; loading it could outlast `_sleep`
    del spare
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), stat("active_bytes.all.current")
    with torch.cuda.stream(side):
        torch.cuda._sleep(SHORT_SLEEP_CYCLES)
        torch.mul(x, 2, out=y)
    x.record_stream(side)
    address = x.data_ptr()
    del x
    z = full(7.0)
    after = torch.cuda.memory_allocated(), stat("active_bytes.all.current")
    states = {block["state"] for block in blocks(torch.cuda.memory_snapshot())} - {"inactive"}
    is_reused = z.data_ptr() == address
    torch.cuda.synchronize()
    right = all_equal(y, 2.0) and all_equal(z, 7.0)
    later = full(3.0)
    return {
        "right": right,
        "is_reused_at_once": is_reused,
        "states": sorted(states),
        "allocated_change": after[0] - before[0],
        "active_change": after[1] - before[1],
        "is_reused_later": later.data_ptr() == address,
        "active_at_last": stat("active_bytes.all.current") - torch.cuda.memory_allocated(),
    }


@behaviour()
def what_other_streams_held_back_is_the_first_to_be_reused() -> Observed:
    mine = torch.cuda.Stream()
    sizes = (16, 700_000, 5 * MIB)
    seen: Observed = {}
    for size in sizes:
        with torch.cuda.stream(mine):
            held = empty(size)
            address = held.data_ptr()
        torch.cuda._sleep(SHORT_SLEEP_CYCLES // 4)
        held.record_stream(torch.cuda.current_stream())
        del held
        with torch.cuda.stream(mine):
            meanwhile = empty(size)
            is_early = meanwhile.data_ptr() == address
            torch.cuda.synchronize()
            later = empty(size)
        seen[str(size)] = [is_early, later.data_ptr() == address]
        del meanwhile, later
    return seen


@behaviour()
def recording_a_view_holds_all_of_it_back() -> Observed:
    side = torch.cuda.Stream()
    x = full(1.0)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SHORT_SLEEP_CYCLES)
        y = x + 1
    x[ELEMENTS // 2 :].record_stream(side)
    del x
    others = [full(7.0, ELEMENTS // 4) for _ in range(4)]
    torch.cuda.synchronize()
    return {"right": all_equal(y, 2.0) and all(all_equal(other, 7.0) for other in others)}


@behaviour()
def the_same_stream_reuses_at_once() -> Observed:
    x = full(1.0)
    reserved = torch.cuda.memory_reserved()
    torch.cuda._sleep(SHORT_SLEEP_CYCLES)
    y = torch.zeros((), device="cuda") + x.sum()
    address = x.data_ptr()
    del x
    z = full(7.0)
    is_reused = z.data_ptr() == address
    torch.cuda.synchronize()
    return {
        "is_reused": is_reused,
        "sum": y.item(),
        "right": all_equal(z, 7.0),
        "reserved_change": torch.cuda.memory_reserved() - reserved,
    }


@behaviour()
def emptying_the_cache_under_load_breaks_nothing() -> Observed:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    outs = []
    for i in range(8):
        with torch.cuda.stream(side):
            x = full(float(i))
            torch.cuda._sleep(SHORT_SLEEP_CYCLES // 8)
            outs.append(x * 2)
            del x
        torch.cuda.empty_cache()
        other = full(-1.0)
        del other
    torch.cuda.synchronize()
    return {"right": [all_equal(out, 2.0 * i) for i, out in enumerate(outs)]}


@behaviour()
def streams_do_not_share_free_memory_unasked() -> Observed:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = full(1.0)
        torch.cuda._sleep(SHORT_SLEEP_CYCLES)
        y = x + 1
        del x
    z = full(7.0)  # allocated while the other stream still reads the memory of `x`
    torch.cuda.synchronize()
    segments = [s["stream"] for s in torch.cuda.memory_snapshot() if s["total_size"] >= 32 * MIB]
    return {
        "right": all_equal(y, 2.0) and all_equal(z, 7.0),
        "has_both_streams": {0, side.cuda_stream} <= set(segments),
    }


@behaviour()
def events_order_the_streams() -> Observed:
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    right = []
    for i in range(20):
        x = full(float(i), MIB)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(SHORT_SLEEP_CYCLES // 50)
            y = x + 1
            done.record()
        torch.cuda.current_stream().wait_event(done)
        del x
        z = full(-5.0, MIB)
        right.append(all_equal(y, i + 1.0) and all_equal(z, -5.0))
    return {"right": all(right), "rounds": len(right)}


@behaviour()
def other_threads_may_free() -> Observed:
    before = torch.cuda.memory_allocated()
    held = [full(float(i), MIB) for i in range(10)]
    inside = torch.cuda.memory_allocated() - before
    problems = in_threads(held.clear)
    after = torch.cuda.memory_allocated() - before
    made: list[Any] = []
    problems += in_threads(lambda: made.append(full(4.0, MIB)))
    right = all_equal(made[0], 4.0)
    made.clear()
    return {
        "problems": problems,
        "inside": inside,
        "after": after,
        "right": right,
        "at_last": torch.cuda.memory_allocated() - before,
    }


@behaviour(either={"reserved": anything})
def threads_and_streams_keep_their_contents() -> Observed:
    before = torch.cuda.memory_allocated()
    wrong: list[str] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        with torch.cuda.stream(torch.cuda.Stream()):
            held: dict[int, Any] = {}
            for step in range(400):
                key = chance.randrange(12)
                old = held.pop(key, None)
                if old is not None and not all_equal(old[0], old[1]):
                    wrong.append(f"thread {number}, step {step}")
                del old
                value = float(number * 1000 + step)
                size = chance.choice([7, 300, 5000, 200_000, 3 * MIB])
                held[key] = (full(value, chance.randrange(1, size + 1)), value)
            for tensor, value in held.values():
                if not all_equal(tensor, value):
                    wrong.append(f"thread {number}, at the end")
            torch.cuda.current_stream().synchronize()

    problems = in_threads(*(lambda number=number: work(number) for number in range(6)))
    torch.cuda.synchronize()
    return {
        "wrong": wrong,
        "problems": problems,
        "left": torch.cuda.memory_allocated() - before,
        "requests_left": stat("allocation.all.current"),
        "requests": stat("allocation.all.allocated"),
        "reserved": torch.cuda.memory_reserved(),
    }


@behaviour(elastic={"peak_reserved": at_most})
def fragmented_memory_keeps_its_contents() -> Observed:
    chance = random.Random(7)
    held: dict[int, Any] = {}
    wrong = 0
    for step in range(1500):
        key = chance.randrange(40)
        old = held.pop(key, None)
        if old is not None:
            wrong += not all_equal(*old)
        del old
        size = chance.randrange(1, 1 << chance.randrange(4, 24))
        held[key] = (full(float(step), size), float(step))
    wrong += sum(not all_equal(*entry) for entry in held.values())
    return {
        "wrong": wrong,
        "peak_requested": stat("requested_bytes.all.peak"),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }


@behaviour(elastic={"peak_reserved": at_most})
def holes_are_filled_without_loss() -> Observed:
    # Frees every second block of 64 blocks of 4 MiB, which leaves holes. Then requests larger
    # blocks, which may span several holes, and smaller blocks, which fit into one hole.
    chance = random.Random(3)
    held = [full(float(i), MIB) for i in range(64)]
    for i in range(0, 64, 2):
        held[i] = None
    wrong = 0
    for round_ in range(20):
        size = chance.randrange(1, 24) * MIB
        large = full(100.0 + round_, size)
        small = full(-1.0, chance.randrange(1, MIB))
        wrong += not all_equal(large, 100.0 + round_)
        wrong += not all_equal(small, -1.0)
        del large, small
    wrong += sum(not all_equal(held[i], float(i)) for i in range(1, 64, 2))
    return {"wrong": wrong, "peak_reserved": torch.cuda.max_memory_reserved()}


@behaviour()
def interoperating_code_allocates_and_deletes() -> Observed:
    before = torch.cuda.memory_allocated()
    pointer = torch.cuda.caching_allocator_alloc(12 * MIB)
    side = torch.cuda.Stream()
    other = torch.cuda.caching_allocator_alloc(1000, device=0, stream=side)
    third = torch.cuda.caching_allocator_alloc(1000, stream=side.cuda_stream)
    inside = torch.cuda.memory_allocated() - before
    kinds = [type(value).__name__ for value in (pointer, other, third)]
    for value in (pointer, other, third):
        torch.cuda.caching_allocator_delete(value)

    def start_of(error: list[str]) -> list[str]:
        return [error[0], error[1].partition(":")[0]] if error else []

    return {
        "kinds": kinds,
        "aligned": [value % 512 for value in (pointer, other, third)],
        "inside": inside,
        "after": torch.cuda.memory_allocated() - before,
        "bad_stream": start_of(
            error_of(lambda: torch.cuda.caching_allocator_alloc(10, stream="side"))
        ),
        "bad_pointer": start_of(error_of(lambda: torch.cuda.caching_allocator_delete(12345))),
        "nothing": torch.cuda.caching_allocator_alloc(0),
    }


@behaviour()
def memory_of_a_stream_that_is_gone_is_freed() -> Observed:
    before = torch.cuda.memory_allocated()

    def use() -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return full(2.0, MIB)

    tensors = [use() for _ in range(40)]
    torch.cuda.synchronize()
    right = all(all_equal(tensor, 2.0) for tensor in tensors)
    del tensors
    torch.cuda.empty_cache()
    return {
        "right": right,
        "allocated": torch.cuda.memory_allocated() - before,
        "reserved": torch.cuda.memory_reserved(),
    }


@behaviour()
def alignment_is_512_bytes() -> Observed:
    tensors = [empty(size) for size in (1, 100, 513, 5000, MIB + 1, 3 * MIB + 7, 15 * MIB + 3)]
    return {"remainders": [tensor.data_ptr() % 512 for tensor in tensors]}
