"""Tests memory tiers, regions, pausing and resuming in PyTorch scripts on simulated GPUs."""

from __future__ import annotations

import json
import re
import resource
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import plimsoll
from plimsoll import InputError, _core
from plimsoll.engine.current import engine_of
from plimsoll.engine.protocol import Engine
from plimsoll.engine.simulator.machine import SimulatedMachine
from plimsoll.offloading.tiers import rebalancing
from plimsoll.offloading.tiers.regions import Backup
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS, on_simulated_gpus, output_of, running_simulation, simulate

torch = pytest.importorskip("torch")

MIB = 1 << 20
on_h100s = partial(on_simulated_gpus, "--allocator", "elastic", gpu="H100")
ELASTIC = ("--allocator", "elastic")


def empty(mib: int, device: str = "cuda") -> Any:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def free(device: int = 0) -> int:
    """Returns the free MiB of a card."""
    return int(torch.cuda.mem_get_info(device)[0]) // MIB


def shared() -> int:
    """Returns the MiB of tensors in host memory."""
    return int(plimsoll.memory_stats()["shared_allocated_bytes.current"]) // MIB


def machine() -> SimulatedMachine:
    return running_simulation().machine


def training(width: int = 2048, layers: int = 4) -> tuple[Callable[[], None], Any]:
    """Builds a model. Returns a function that runs one training step, and the optimizer."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(torch.randn(8, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


# --- placing and spilling ------------------------------------------------------------------------


@on_h100s()
def test_a_region_has_memory_of_its_own_in_the_tier_that_it_prefers() -> None:
    before = free()
    with plimsoll.region("tables", prefer="shared"):
        table = empty(100)
    with plimsoll.region("cache"):
        _cache = empty(40)
    tables, cached = plimsoll.region_uses("tables")[0], plimsoll.region_uses("cache")[0]
    assert tables.allocated_bytes == tables.shared_reserved_bytes == 100 * MIB
    assert (cached.allocated_bytes, cached.shared_reserved_bytes) == (40 * MIB, 0)
    assert before - free() == 40
    assert shared() == 100
    assert plimsoll.memory_stats()["num_spills"] == 0
    del table
    assert shared() == 0


@pytest.mark.long
@on_h100s("--policy", "spill", "--dedicated", "1GiB", "--shared", "2GiB")
def test_what_spills_is_told_once_with_the_line() -> None:
    _first = empty(900)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _second = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")  # here it spills
        _third = empty(100)
    (warning,) = caught
    assert warning.category is plimsoll.SpillWarning
    lines = Path(__file__).read_text().splitlines()
    assert "# here it spills" in lines[warning.lineno - 1]
    assert __file__ in str(warning.message)
    assert shared() == 576
    text = plimsoll.memory_summary()
    assert "spilled: 2 requests found too little dedicated memory" in text, text
    sizes = [s.get("shared_size", 0) for s in plimsoll.memory_snapshot()["segments"]]
    assert sum(sizes) == 576 * MIB


def spill() -> None:
    _x = empty(2000)


def test_a_spill_warns_on_stderr() -> None:
    done = simulate(spill, *ELASTIC, "--policy", "spill", "--dedicated", "1GiB", gpu="H100")
    assert done.returncode == 0, done.stderr
    assert "SpillWarning: GPU memory is spent: a request of 1.95 GiB" in done.stderr


@on_h100s()
def test_tiers_are_set_while_a_script_runs() -> None:
    plimsoll.set_tiers(dedicated="1GiB", shared="1GiB")
    _first = empty(1000)
    with pytest.raises(torch.OutOfMemoryError, match=r"1024\.00 MiB|1\.00 GiB"):
        empty(200)  # the default policy, strict, raises instead of spilling
    # This call has no effect: the limit is the lower of PyTorch's memory fraction and `dedicated`.
    torch.cuda.set_per_process_memory_fraction(1.0)
    warnings.simplefilter("ignore")
    plimsoll.set_tiers(policy="spill")
    _second = empty(200)
    assert shared() == 176
    with pytest.raises(torch.OutOfMemoryError, match="hared memory"):
        empty(1000)
    unknown: Any = "hope"
    refusals: tuple[Callable[[], object], ...] = (
        lambda: plimsoll.set_tiers(dedicated="9000GiB"),
        lambda: plimsoll.set_tiers(shared="9000GiB"),
        lambda: plimsoll.set_tiers(policy=unknown),
        lambda: plimsoll.set_tiers(rebalance=unknown),
        lambda: plimsoll.set_tiers(device=1, policy="spill"),
    )
    for wrong in refusals:
        with pytest.raises(InputError) as caught:
            wrong()
        assert len(str(caught.value).splitlines()) == 1


@on_h100s()
def test_installing_on_simulated_gpus_sets_the_tiers() -> None:
    plimsoll.install(policy="spill", dedicated="1GiB", shared="1GiB")
    warnings.simplefilter("ignore")
    _x = empty(1500)
    assert shared() == 476
    with pytest.raises(InputError, match="--allocator native"):
        plimsoll.install("native")


def ask_for_what_the_elastic_allocator_has() -> None:
    x = empty(10)

    def enter() -> None:
        with plimsoll.region("r"):
            pass

    for wrong in (
        enter,
        lambda: plimsoll.rebalance(),
        lambda: plimsoll.set_tiers(policy="spill"),
        lambda: plimsoll.place_optimizer(torch.optim.SGD([x.float().requires_grad_()])),
    ):
        with pytest.raises(InputError, match="elastic allocator"):
            wrong()
    assert plimsoll.memory_stats()["shared_reserved_bytes.current"] == 0
    assert "dedicated:" in plimsoll.memory_summary()
    assert plimsoll.memory_snapshot()["segments"]


@pytest.mark.long
@pytest.mark.parametrize("allocator", ["native", "uncached"])
def test_under_another_allocator_the_reason_is_said(allocator: str) -> None:
    output_of(ask_for_what_the_elastic_allocator_has, "--allocator", allocator, gpu="H100")


# --- pausing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backup", "locked"), [("host", None), ("disk", 64 * MIB), ("drop", 0)])
@on_h100s()
def test_a_paused_region_gives_the_card_back(backup: Backup, locked: int | None) -> None:
    """Pauses a region with each kind of backup.

    Args:
        backup: The place for the region's contents while it is paused.
        locked: The bytes of page-locked host memory that the pause takes. None if they equal the
            bytes that the pause frees on the card.
    """
    with plimsoll.region("r"):
        tensors = [empty(m) for m in (1, 3, 64, 200)]
    folder = Path("backups")
    folder.mkdir()
    _other = empty(50)
    for _ in range(3):
        addresses, before = [t.data_ptr() for t in tensors], free()
        freed = plimsoll.pause("r", backup=backup, directory=str(folder))
        assert 268 <= freed // MIB <= 272
        assert (free() - before) * MIB == freed
        assert plimsoll.is_paused("r")
        assert plimsoll.region_uses("r")[0].paused_bytes == freed
        assert any(s.get("is_paused") for s in plimsoll.memory_snapshot()["segments"])
        assert f"paused: {freed // MIB}.00 MiB are off the card" in plimsoll.memory_summary()
        assert engine_of().host_reserved_bytes() == (freed if locked is None else locked)
        assert plimsoll.resume("r") == freed
        assert free() == before
        assert [t.data_ptr() for t in tensors] == addresses
    assert list(folder.iterdir()) == []


@on_h100s("--host-memory", "2GiB", "--dedicated", "1500MiB")
def test_pausing_checks_for_room_in_the_host_and_on_the_card() -> None:
    with plimsoll.region("r"):
        _x = empty(1200)
    before = free()
    with pytest.raises(plimsoll.OutOfMemoryError, match="no memory to pause"):
        plimsoll.pause("r")
    assert free() == before
    assert not plimsoll.is_paused("r")
    plimsoll.pause("r", backup="disk")
    wall = empty(660)
    with pytest.raises(plimsoll.OutOfMemoryError, match="no memory to resume the region 'r'"):
        plimsoll.resume("r")
    assert plimsoll.is_paused("r")
    del wall
    plimsoll.resume("r")


@pytest.mark.long
@on_h100s("--gpus", "2")
def test_a_full_disk_leaves_a_region_as_it_was() -> None:
    with plimsoll.region("r"):
        _both = empty(300, "cuda:0"), empty(10, "cuda:1")
    before = free(0), free(1)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * MIB, hard))
    with pytest.raises(InputError, match=r"^cannot write the backup: File too large$"):
        plimsoll.pause("r", backup="disk")
    assert not plimsoll.is_paused("r")
    assert (free(0), free(1)) == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert plimsoll.pause("r", backup="disk") == 310 * MIB
    assert plimsoll.resume("r") == 310 * MIB


@on_h100s()
def test_what_makes_no_sense_is_refused() -> None:
    plimsoll.region("never entered")
    with plimsoll.region("r"):
        _x = empty(10)
    with plimsoll.region("empty"):
        pass
    plimsoll.pause("r")
    unknown: Any = "tape"

    def ask() -> None:
        with plimsoll.region("r"):
            empty(1)

    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: plimsoll.pause("r"), "paused already"),
        (lambda: plimsoll.pause("empty"), "has no memory"),
        (lambda: plimsoll.pause("never entered"), "no region 'never entered'; known: empty, r"),
        (lambda: plimsoll.resume("empty"), "not paused"),
        (lambda: plimsoll.pause("r", backup=unknown), "unknown backup"),
        (lambda: plimsoll.region("r", prefer=unknown), "unknown tier"),
        (ask, "the region is paused"),
    ]
    for wrong, expected in refusals:
        with pytest.raises((InputError, RuntimeError), match=re.escape(expected)):
            wrong()
    plimsoll.resume("r")
    with pytest.raises(InputError, match="cannot write into /no/such/folder"):
        plimsoll.pause("r", backup="disk", directory="/no/such/folder")
    assert not plimsoll.is_paused("r")


@on_h100s("--gpus", "2")
def test_all_gpus_are_paused_or_none() -> None:
    with plimsoll.region("r"):
        _both = empty(10, "cuda:0"), empty(20, "cuda:1")
    assert plimsoll.pause("r") == 30 * MIB
    assert plimsoll.resume("r") == 30 * MIB
    gpu = machine().gpus[1]
    before = free(0), free(1)
    gpu.fail("unmap", times=1)
    with pytest.raises(RuntimeError, match="pause a region"):
        plimsoll.pause("r", backup="disk")
    assert not plimsoll.is_paused("r")
    assert (free(0), free(1)) == before
    assert plimsoll.pause("r") == 30 * MIB


# --- return to the card --------------------------------------------------------------------------


class Spilled:
    """A training run whose optimizer state did not fit on the card and went to host memory."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore")
        self._wall = empty(1000)
        self.step, self.optimizer = training()
        self.step()
        assert shared() > 0

    def addresses(self) -> list[int]:
        return [p.data_ptr() for g in self.optimizer.param_groups for p in g["params"]]

    def make_room(self) -> None:
        self._wall = None
        torch.cuda.empty_cache()


SPILLING = ("--policy", "spill", "--dedicated", "1200MiB")


@pytest.mark.long
@on_h100s(*SPILLING)
def test_what_spilled_comes_back_by_itself_after_a_step() -> None:
    spilled = Spilled()
    addresses = spilled.addresses()
    spilled.step()
    assert shared() > 0  # the card has no room yet, so the state stays in host memory
    spilled.make_room()
    spilled.step()
    assert shared() == 0
    assert addresses == spilled.addresses()


@on_h100s(*SPILLING)
def test_memory_comes_back_by_hand_where_that_is_wanted() -> None:
    spilled = Spilled()
    plimsoll.set_tiers(rebalance="manual")
    spilled.make_room()
    spilled.step()
    some = shared()
    assert some > 0
    assert plimsoll.rebalance(at_most="1MiB") == 0
    assert plimsoll.rebalance() // MIB >= some
    assert shared() == 0


def fail_to_come_back() -> None:
    spilled = Spilled()
    spilled.make_room()
    some = shared()
    # Makes the next copy fail with an error other than out of memory.
    driver = machine().gpus[0]._driver
    driver.inject(_core.Call.copy, 0, 1, _core.Status.failed)
    spilled.step()
    spilled.step()
    # In the first step, the move to the card failed. The second step did not try again.
    assert shared() == some
    plimsoll.set_tiers(rebalance="step")
    spilled.step()
    print(shared())


def test_coming_back_never_fails_a_program() -> None:
    done = simulate(fail_to_come_back, *ELASTIC, *SPILLING, gpu="H100")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
    assert done.stderr.startswith("plimsoll: spilled memory stays where it is: ")


@on_h100s()
def test_a_step_waits_for_nothing_when_nothing_can_come_back() -> None:
    step, _ = training()
    step()
    assert not rebalancing._engines  # plimsoll watches steps only if the policy is "spill"
    plimsoll.set_tiers(policy="spill")
    calls = []

    class Watched:
        handle = engine_of().handle
        shared_allocated_bytes = 0

        def rebalance(self) -> None:
            calls.append(1)

    rebalancing.watch_steps(cast("Engine", Watched()))  # watches this object in place of an engine
    step()
    assert not calls
    Watched.shared_allocated_bytes = 1
    step()
    assert calls == [1]


# --- predictions ---------------------------------------------------------------------------------


def predicted(program: str, *arguments: str) -> dict[str, Any]:
    """Returns the prediction for a program on an H100, under the elastic allocator."""
    options = ("--gpu", "H100", *ELASTIC, "--json")
    done = run_plimsoll("predict", *options, PROGRAMS / "tiers" / program, "--", *arguments)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def place_an_optimizer() -> None:
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    placement = plimsoll.place_optimizer(optimizer)
    print(placement)
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    print(placement)
    placement.remove()
    print(repr(placement))


def test_a_placement_says_what_it_placed() -> None:
    out = output_of(place_an_optimizer, *ELASTIC, gpu="H100")
    assert out.splitlines() == [
        "AdamW: 0 bytes of state in shared memory, in 0 tensors, region 'optimizer'",
        "AdamW: 8.00 MiB of state in shared memory, in 2 tensors, region 'optimizer'",
        "<OptimizerPlacement AdamW: 8.00 MiB of state in shared memory, in 2 tensors, region "
        "'optimizer'; ended>",
    ]


@pytest.mark.long
def test_a_prediction_counts_an_optimizers_state_in_shared_memory() -> None:
    state = 4 * 2 * 2048 * 2048 * 4
    placed = predicted("optimizer_in_either_tier.py", "--place")
    # A fused optimizer has a step counter for each weight. plimsoll creates these counters in
    # shared memory together with the rest of the state, then moves them to the card.
    steps = 4 * 512
    assert placed["shared"]["peak_allocated_bytes"] == state + steps
    assert placed["shared_used_bytes"] == placed["shared"]["peak_bytes"] == state + (2 << 20)
    assert placed["shared"]["num_spills"] == 0
    assert placed["shared_by_category"]["optimizer_state"] == state
    plain = predicted("optimizer_in_either_tier.py")
    assert plain["shared"] is None
    assert plain["by_category"]["optimizer_state"] >= state
    assert plain["step_peaks_bytes"][-1] == placed["step_peaks_bytes"][-1]


def test_a_prediction_counts_a_region_in_shared_memory() -> None:
    found = predicted("tables_in_shared_memory.py")
    assert found["shared_used_bytes"] == 100 << 20
    assert found["shared"]["peak_dedicated_bytes"] == 50 << 20
    assert found["peak_allocated_bytes"] == 150 << 20


@on_h100s("--gpus", "2")
def test_a_snapshot_says_the_fragments_of_every_gpu() -> None:
    kept = []
    for gpu in range(2):
        blocks = [torch.empty(700 << 10, dtype=torch.uint8, device=f"cuda:{gpu}") for _ in range(9)]
        kept += blocks[:: 8 - gpu]
        del blocks
    wanted = {str(gpu): engine_of(gpu).fragments_bytes() for gpu in range(2)}
    assert all(wanted.values()), wanted
    for snapshot in (plimsoll.memory_snapshot(), torch.cuda.memory._snapshot()):
        assert snapshot["allocator_settings"]["fragments_bytes"] == wanted
        cards = snapshot["allocator_settings"]["gpus"]
        assert [card["device"] for card in cards] == [0, 1]
        assert {card["name"] for card in cards} == {"H100"}


@pytest.mark.filterwarnings("ignore::plimsoll.SpillWarning")
@on_simulated_gpus("--driver", "wddm", "--host-memory", "64GiB", gpu="V100-16GB")
def test_every_kernel_reads_an_operand_in_shared_memory_once_over_the_bus() -> None:
    import torch

    def milliseconds(kernel: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        kernel()
        end.record()
        end.synchronize()
        return cast("float", begin.elapsed_time(end))

    def times(weight: torch.Tensor) -> list[float]:
        return [
            milliseconds(lambda: torch.mm(few_rows, weight, out=few_results)),
            milliseconds(lambda: weight.sum()),
            milliseconds(lambda: weight.add_(1)),
        ]

    few_rows = torch.zeros(16, 8192, device="cuda")
    many_rows = torch.zeros(8192, 8192, device="cuda")
    few_results = torch.zeros(16, 32768, device="cuda")
    many_results = torch.zeros(8192, 32768, device="cuda")
    near = torch.zeros(8192, 32768, device="cuda")
    times(near)  # cuBLAS's workspace
    full = torch.empty(14 << 30, dtype=torch.uint8, device="cuda")
    far = torch.zeros(8192, 32768, device="cuda")
    on_card, over_bus = times(near), times(far)
    assert max(over_bus) == pytest.approx(min(over_bus))
    assert all(bus > 30 * card for bus, card in zip(over_bus, on_card, strict=True))
    # A product that computes for longer than the bus takes hides the bus's time.
    large = [
        milliseconds(lambda: torch.mm(many_rows, near, out=many_results)),
        milliseconds(lambda: torch.mm(many_rows, far, out=many_results)),
    ]
    assert large[0] == pytest.approx(large[1])
    assert large[0] > max(over_bus)
    assert full.is_cuda
