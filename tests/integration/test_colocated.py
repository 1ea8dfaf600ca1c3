"""Tests that regions are paused and resumed. Two engines take turns on one simulated card.

A region is the memory that a program allocates under one name. A paused region takes no memory of
the card. plimsoll must not have these faults of other libraries that pause memory:
- Pausing or resuming fails if it happens twice, for a part of the memory, or during a capture.
- A resume without enough room leaves half of the memory on the card.
- The memory of graphs stays on the card, or returns to other addresses.
- Host memory grows from cycle to cycle.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import plimsoll
from plimsoll import InputError, _core
from plimsoll.engine.current import engine_of
from plimsoll.engine.simulator.machine import SimulatedMachine
from tests.apart import ROOT
from tests.simulated import on_simulated_gpus, output_of, running_simulation

torch = pytest.importorskip("torch")

MIB = 1 << 20
on_h100s = partial(on_simulated_gpus, "--allocator", "elastic", "--host-memory", "8GiB", gpu="H100")


def empty(mib: int, region: str = "", device: str = "cuda") -> Any:
    with plimsoll.region(region):
        return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def free() -> int:
    """Returns the free MiB of the card."""
    return int(torch.cuda.mem_get_info()[0]) // MIB


def machine() -> SimulatedMachine:
    return running_simulation().machine


def paused(*names: str) -> list[bool]:
    return [plimsoll.is_paused(name) for name in names]


def captured(mib: int) -> tuple[Any, Any]:
    """Captures a graph in the memory of the region "graphs". Returns the graph and its result."""
    graph = torch.cuda.CUDAGraph()
    source = torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(graph, pool=plimsoll.graph_pool("graphs")):
        result = source + 1
        result = result * 2
    return graph, result


# --- several regions at once -------------------------------------------------------------------


@pytest.mark.long
@on_h100s()
def test_several_regions_leave_and_come_back_by_one_call() -> None:
    kept = empty(100, "weights"), empty(30, "kv-cache"), empty(7, "other")
    before = free()
    assert plimsoll.pause("weights", "kv-cache") == 130 * MIB
    assert paused("weights", "kv-cache", "other") == [True, True, False]
    assert free() == before + 130
    assert plimsoll.resume("kv-cache") == 30 * MIB  # either region can return alone
    assert paused("weights", "kv-cache") == [True, False]
    assert plimsoll.resume("weights") == 100 * MIB
    assert free() == before
    del kept


@pytest.mark.long
@on_h100s("--gpus", "2")
def test_regions_are_paused_all_or_none() -> None:
    kept = [empty(m, name, d) for d in ("cuda:0", "cuda:1") for m, name in ((20, "a"), (30, "b"))]
    before = free()
    # On GPU 1, the driver's first unmapping succeeds and the second fails.
    machine().gpus[1].fail("unmap", after=1, times=1)
    with pytest.raises(RuntimeError, match="pause a region"):
        plimsoll.pause("a", "b", backup="disk")
    assert paused("a", "b") == [False, False]
    assert free() == before
    assert plimsoll.pause("a", "b") == 100 * MIB
    assert plimsoll.resume("b", "a") == 100 * MIB
    del kept


@pytest.mark.long
@pytest.mark.parametrize("backup", ["host", "disk", "drop"])
@on_h100s("--dedicated", "1GiB")
def test_a_resume_that_finds_no_room_for_the_last_region_pauses_the_first_again(
    backup: Any,
) -> None:
    kept = empty(200, "weights"), empty(700, "kv-cache")
    plimsoll.pause("weights", "kv-cache", backup=backup)
    wall = empty(500)
    before, locked = free(), engine_of().host_reserved_bytes()
    for _ in range(3):
        with pytest.raises(plimsoll.OutOfMemoryError, match="to resume the region 'kv-cache'"):
            plimsoll.resume("weights", "kv-cache")
        assert paused("weights", "kv-cache") == [True, True]
        torch.cuda.empty_cache()
        assert free() == before
        assert engine_of().host_reserved_bytes() == locked
    del wall
    assert plimsoll.resume("weights", "kv-cache") == 900 * MIB
    engine_of().check_invariants()
    del kept


@pytest.mark.long
@on_h100s("--host-memory", "2GiB")
def test_a_pause_that_the_host_has_no_room_for_leaves_all_on_the_card() -> None:
    kept = empty(600, "weights"), empty(700, "kv-cache")
    before = free()
    for _ in range(3):
        with pytest.raises(plimsoll.OutOfMemoryError, match="to pause the region 'kv-cache'"):
            plimsoll.pause("weights", "kv-cache")
        assert paused("weights", "kv-cache") == [False, False]
        assert free() == before
    assert plimsoll.pause("weights") > 0
    assert plimsoll.pause("kv-cache", backup="drop") > 0
    plimsoll.resume("weights", "kv-cache")
    assert free() == before
    del kept


@on_h100s()
def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    kept = empty(10, "weights"), empty(20, "kv-cache")
    plimsoll.pause("weights")
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: plimsoll.pause(), "name the regions that are meant; known: kv-cache, weights"),
        (lambda: plimsoll.resume(), "name the regions that are meant"),
        (lambda: plimsoll.pause("kv-cache", "kv-cache"), "'kv-cache' is named twice"),
        (lambda: plimsoll.pause("kv-cache", "weights"), "'weights' is paused already"),
        (lambda: plimsoll.pause("kv-cache", "cache"), "there is no region 'cache'"),
        (lambda: plimsoll.resume("weights", "kv-cache"), "'kv-cache' is not paused"),
        (lambda: plimsoll.resume("weights", "cache"), "there is no region 'cache'"),
        (lambda: plimsoll.graph_pool(""), "needs a name"),
    ]
    for wrong, expected in refusals:
        with pytest.raises(InputError, match=re.escape(expected)) as caught:
            wrong()
        assert len(str(caught.value).splitlines()) == 1
        assert paused("weights", "kv-cache") == [True, False]
    plimsoll.resume("weights")
    del kept


# --- graphs ------------------------------------------------------------------------------------


@on_h100s()
def test_in_the_middle_of_a_capture_nothing_is_paused_or_resumed() -> None:
    kept = empty(10, "weights"), empty(20, "kv-cache")
    plimsoll.pause("kv-cache")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(InputError, match="while a graph is being captured"):
            plimsoll.pause("weights")
        with pytest.raises(InputError, match="while a graph is being captured"):
            plimsoll.resume("kv-cache")
        _inside = torch.empty(MIB, device="cuda")
    assert paused("weights", "kv-cache") == [False, True]
    plimsoll.resume("kv-cache")
    del kept


@on_h100s()
def test_a_graphs_memory_leaves_with_its_region_and_comes_back_whole() -> None:
    graph, result = captured(40)
    torch.cuda.empty_cache()
    address, before = result.data_ptr(), free()
    use = plimsoll.region_uses("graphs")[0]
    assert use.allocated_bytes == 40 * MIB
    assert use.reserved_bytes >= 80 * MIB  # includes the memory of a temporary tensor
    for _ in range(3):
        assert plimsoll.pause("graphs") == use.reserved_bytes
        assert free() == before + use.reserved_bytes // MIB
        assert empty(500).nbytes == 500 * MIB
        torch.cuda.empty_cache()
        assert plimsoll.resume("graphs") == use.reserved_bytes
        torch.cuda.empty_cache()  # the graph's memory stays
        assert plimsoll.region_uses("graphs")[0] == use
        assert result.data_ptr() == address
        graph.replay()
        assert free() == before


@on_h100s()
def test_a_graph_may_end_while_its_region_is_paused() -> None:
    first, second = captured(40), captured(10)
    plimsoll.pause("graphs")
    del first
    plimsoll.resume("graphs")
    plimsoll.pause("graphs")
    del second
    gc.collect()
    assert plimsoll.resume("graphs") == 0
    torch.cuda.empty_cache()
    engine_of().check_invariants()
    assert torch.cuda.memory_reserved() <= 2 * MIB


@on_h100s()
def test_a_graph_that_is_gone_gives_its_memory_back() -> None:
    # Loads kernels and creates a stream before the first call of `free`. Both enlarge the CUDA
    # context, and would otherwise change the free memory later.
    with torch.cuda.stream(torch.cuda.Stream()):
        empty(1).add_(1)
    before = free()
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _inside = empty(50) + 1
        del graph, _inside
    gc.collect()
    torch.cuda.empty_cache()
    assert before - free() <= 2


# --- other streams, and failures during a cycle --------------------------------------------------


@on_h100s()
def test_a_pause_waits_for_the_work_of_all_streams() -> None:
    weights = empty(200, "weights")
    streams = [torch.cuda.Stream() for _ in range(3)]
    done = [torch.cuda.Event() for _ in streams]
    for stream, event in zip(streams, done, strict=True):
        with torch.cuda.stream(stream):
            for _ in range(20):
                weights.add_(1)
            event.record()
    assert not all(event.query() for event in done)
    plimsoll.pause("weights")
    assert all(event.query() for event in done)


@on_h100s()
def test_what_other_streams_still_use_when_it_is_freed_is_not_lost_by_a_pause() -> None:
    kept, used = empty(50, "weights"), empty(30, "weights")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(20):
            used.add_(1)
    used.record_stream(stream)
    del used
    assert plimsoll.pause("weights") <= 52 * MIB
    plimsoll.resume("weights")
    engine_of().check_invariants()
    assert plimsoll.region_uses("weights")[0].allocated_bytes == kept.nbytes


@on_h100s()
def test_a_driver_that_fails_anywhere_in_between_leaves_both_engines_whole() -> None:
    kept = [empty(150, "training"), empty(60, "weights"), empty(20, "kv-cache")]
    plimsoll.pause("weights", "kv-cache")
    driver, before = machine().gpus[0]._driver, free()
    calls = (_core.Call.create, _core.Call.map, _core.Call.set_access, _core.Call.copy)
    failures = 0
    for call in calls:
        for position in range(4):
            driver.inject(call, position, 1, _core.Status.failed)
            try:
                plimsoll.resume("weights", "kv-cache")
                plimsoll.pause("weights", "kv-cache")
            except RuntimeError:
                failures += 1
            driver.clear_faults()
            engine_of().check_invariants()
            if not any(paused("weights", "kv-cache")):
                plimsoll.pause("weights", "kv-cache")
            assert paused("training", "weights", "kv-cache") == [False, True, True]
            assert free() == before
    assert failures >= 8
    plimsoll.resume("weights", "kv-cache")
    assert sum(plimsoll.region_uses(n)[0].allocated_bytes for n in ("weights", "kv-cache")) == sum(
        tensor.nbytes for tensor in kept[1:]
    )


@on_h100s()
def test_twenty_cycles_grow_nothing() -> None:
    training = empty(500, "training")
    weights, cache = empty(130, "weights"), empty(300, "kv-cache")
    graph, _result = captured(3)
    seen = []
    plimsoll.pause("training")
    for _ in range(20):
        plimsoll.pause("kv-cache", backup="drop")
        plimsoll.pause("weights", "graphs")
        plimsoll.resume("training")
        _step = empty(200)
        plimsoll.resume("weights", "graphs")
        weights.copy_(training[: weights.numel()])
        plimsoll.pause("training")
        del _step
        plimsoll.resume("kv-cache")
        cache.add_(1)
        graph.replay()
        objects = machine().gpus[0].driver_objects
        seen.append((free(), engine_of().host_reserved_bytes(), objects))
    assert seen[2:] == [seen[2]] * 18
    assert seen[0][1] == seen[2][1]  # page-locked memory does not grow after the first cycle


# --- programs ------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_takes_turns_on_a_card_that_cannot_hold_both() -> None:
    out = output_of(
        ROOT / "examples" / "colocated.py",
        *("--allocator", "elastic", "--host-memory", "32GiB"),
        gpu="RTX 4060 Laptop",
    )
    assert len(out.splitlines()) == 3


def soak(hours: float, seed: int) -> str:
    script = ROOT / "benchmarks" / "soak_simulated.py"
    options = ("--simulated-hours", str(hours), "--seed", str(seed))
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_hour_of_a_random_program_leaves_nothing_behind(seed: int) -> None:
    assert "nothing is left at the end" in soak(1, seed)


@pytest.mark.long
def test_a_day_of_a_random_program_grows_nothing() -> None:
    assert "nothing is left at the end" in soak(24, 4)
