"""Tests memory tiers (card, then host memory): live and simulated allocators answer alike."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from plimsoll import Allocator, InputError, SimulatedGpu, _core
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.summary import tiers_text
from plimsoll.offloading.tiers.limits import Tiers
from tests.faults import limited_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.engine.protocol import Engine

REGION = 3


class Machine:
    """An engine on a simulated GPU of 1 GiB. Up to 2 GiB of host memory can be shared memory."""

    def __init__(self, kind: str, allocator: str = "elastic") -> None:
        self.gpu = SimulatedGpu("1GiB", host_memory="4GiB")
        self.engine: Engine
        self.malloc: Callable[[int], int]
        self.free: Callable[[int], object]
        if kind == "simulated":
            self._allocator = Allocator(self.gpu, allocator=allocator)  # type: ignore[arg-type]
            self.engine = self._allocator.engine
            self.malloc, self.free = self._allocator.malloc, self._allocator.free
            return
        live = _core.Engine.simulated(self.gpu._driver, allocator, "", "2.11", 0, False)
        self.engine = live
        self.malloc, self.free = lambda size: live.allocate(size, 0), live.free


@contextmanager
def placed(region: int | None, *, shared: bool = False) -> Iterator[None]:
    _core.set_placement(region, shared)
    try:
        yield
    finally:
        _core.set_placement(None)


@pytest.fixture(params=["live", "simulated"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def shared(machine: Machine) -> int:
    return machine.engine.shared_allocated_bytes


def test_a_spill_is_told_of_once(machine: Machine) -> None:
    engine = machine.engine
    told: list[int] = []
    engine.on_first_spill(told.append)
    with pytest.raises(ValueError, match="told of spills already"):
        engine.on_first_spill(told.append)
    wall = machine.malloc(900 * MiB)
    engine.spills = True
    for size in (200, 100):
        machine.malloc(size * MiB)
    assert told == [200 * MiB]
    assert shared(machine) == engine.statistics()["shared_allocated_bytes.current"] == 176 * MiB
    assert engine.rebalance() == 0
    machine.free(wall)
    # Nothing moves back to the card, because `wall`'s 900 MiB stay cached for the next step.
    assert engine.rebalance() == 0


def test_the_lower_of_two_limits_counts(machine: Machine) -> None:
    engine = machine.engine
    engine.set_dedicated_limit(512 * MiB)
    assert engine.limit == 512 * MiB
    live: _core.Engine = engine  # type: ignore[assignment]
    live.limit = 256 * MiB
    assert engine.limit == 256 * MiB
    engine.set_dedicated_limit(None)
    assert engine.limit == 256 * MiB
    engine.set_dedicated_limit(512 * MiB)
    live.limit = None
    assert engine.limit == 512 * MiB


# All live engines of a process share one pool of page-locked memory. The pool takes its memory from
# the machine of the first engine that used it, perhaps in an earlier test. So the live engine runs
# only with "drop", which does not use the pool.
@pytest.mark.parametrize(
    ("kind", "backup"),
    [("simulated", "host"), ("simulated", "disk"), ("simulated", "drop"), ("live", "drop")],
)
def test_a_region_leaves_the_card_and_comes_back(kind: str, backup: str) -> None:
    machine = Machine(kind)
    engine = machine.engine
    assert engine.region_use(REGION) == {}
    with placed(REGION):
        block = machine.malloc(300 * MiB)
    with tempfile.TemporaryFile() as file:
        number = file.fileno() if backup == "disk" else None
        assert engine.pause(REGION, backup != "drop", number) == 300 * MiB
    assert engine.is_paused(REGION)
    assert engine.memory_info() == (GiB, GiB)
    if kind == "simulated":
        assert engine.host_reserved_bytes() == {"host": 300, "disk": 64, "drop": 0}[backup] * MiB
    assert engine.region_use(REGION)["paused_bytes"] == 300 * MiB
    assert "paused: 300.00 MiB are off the card" in tiers_text(engine)
    assert engine.resume(REGION) == 300 * MiB
    assert engine.memory_info() == (724 * MiB, GiB)
    machine.free(block)


def test_a_full_host_is_told_and_changes_nothing() -> None:
    machine = Machine("simulated")
    pinned = machine.gpu.pin_memory("2GiB")
    with placed(REGION):
        machine.malloc(300 * MiB)
    with tempfile.TemporaryFile() as file:
        for number in (None, file.fileno()):
            with pytest.raises(_core.HostOutOfMemory):
                machine.engine.pause(REGION, keep=True, file=number)
    assert not machine.engine.is_paused(REGION)
    machine.gpu.unpin_memory(pinned)
    assert machine.engine.pause(REGION, keep=True) == 300 * MiB


def test_a_full_disk_is_told_and_changes_nothing() -> None:
    machine = Machine("simulated")
    engine = machine.engine
    with placed(REGION):
        machine.malloc(300 * MiB)
    before = engine.memory_info()
    with tempfile.TemporaryFile() as file:
        for most in (100 * MiB, 300 * MiB - 1):
            with (
                limited_files(most),
                pytest.raises(_core.BackupError, match="cannot write the backup: File too large"),
            ):
                engine.pause(REGION, keep=True, file=file.fileno())
        assert not engine.is_paused(REGION)
        assert engine.memory_info() == before
        assert engine.host_reserved_bytes() == 0
        assert engine.pause(REGION, keep=True, file=file.fileno()) == 300 * MiB


@pytest.mark.parametrize("kind", ["live", "simulated"])
def test_another_allocator_has_no_regions(kind: str) -> None:
    engine = Machine(kind, "native").engine
    for call in (
        lambda: engine.region_use(REGION),
        lambda: engine.pause(REGION, keep=True),
        lambda: engine.rebalance(),
        lambda: engine.spills,
        lambda: engine.on_first_spill(print),
    ):
        with pytest.raises(ValueError, match="needs the elastic allocator"):
            call()
    assert engine.statistics()["shared_reserved_bytes.current"] == 0
    assert tiers_text(engine).startswith("dedicated: 0 bytes reserved, 0 bytes of it allocated; ")


def test_what_a_person_sets_holds_or_is_refused(machine: Machine) -> None:
    Tiers.parse(None, "512MiB", "1GiB").apply(machine.engine)
    assert machine.engine.limit == 512 * MiB
    assert machine.engine.shared_limit == GiB
    for words, expected in (
        ((None, "2GiB"), "2.00 GiB of dedicated memory is more than the card has: 1.00 GiB"),
        ((None, None, "3GiB"), "more than the host can lock for GPUs: 2.00 GiB"),
        ((None, "-1GiB"), "not a size"),
        ((None, "6"), "did you mean 6GiB"),
        ((None, 6), "6 bytes is no size of memory; did you mean 6GiB"),
        ((None, None, 32), "did you mean 32GiB"),
        (("hope",), "there are strict and spill"),
        ((None, None, None, "never"), "there are step and manual"),
    ):
        with pytest.raises(InputError, match=expected):
            Tiers.parse(*words).apply(machine.engine)
    assert machine.engine.limit == 512 * MiB
