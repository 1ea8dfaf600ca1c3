"""Tests tiers, regions and pausing on a real GPU, each program in a new process."""

from __future__ import annotations

import resource
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll import InputError
from plimsoll.engine.current import engine_of
from plimsoll.offloading.tiers.regions import Backup
from tests.apart import in_a_process

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

MIB = 1 << 20


def full(mib: int, value: int) -> Any:
    return torch.full((mib * MIB,), value, dtype=torch.uint8, device="cuda")


def holds(tensor: Any, value: int) -> bool:
    return bool((tensor[::4096] == value).all()) and bool((tensor[-4096:] == value).all())


def shared() -> int:
    """Returns the MiB of tensors in host memory."""
    return int(plimsoll.memory_stats()["shared_allocated_bytes.current"]) // MIB


@in_a_process
def test_dedicated_memory_alone_serves_as_long_as_it_lasts() -> None:
    plimsoll.install(policy="spill", dedicated="1GiB", shared="2GiB")
    warnings.simplefilter("error")
    x = full(900, 1)
    assert holds(x[:MIB], 1)
    assert shared() == 0


@in_a_process
def test_page_locked_memory_counts_as_shared() -> None:
    plimsoll.install()
    torch.cuda.init()
    x = torch.ones(64 * MIB, dtype=torch.uint8)
    pinned = plimsoll.pin({"a": [x, 3], "b": (x,)})
    assert pinned["a"][0].is_pinned()
    assert pinned["a"][1] == 3
    y = pinned["b"][0].to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert holds(y, 1)
    assert engine_of().host_reserved_bytes() >= 128 * MIB


@in_a_process
def test_what_dedicated_memory_cannot_hold_spills_into_shared_with_one_warning() -> None:
    plimsoll.install(policy="spill", dedicated="1GiB", shared="2GiB")
    x = full(900, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = full(600, 2)
        z = full(100, 3)
    assert [w.category for w in caught] == [plimsoll.SpillWarning], caught
    assert "shared memory" in str(caught[0].message)
    assert f"{Path(__file__).name}:" in str(caught[0].message)
    text = plimsoll.memory_summary()
    assert "spilled: 2 requests" in text, text
    assert holds(x, 1)
    assert holds(y, 2)
    assert holds(z, 3)
    assert 500 <= shared() <= 600 + 100
    sizes = [s.get("shared_size", 0) for s in plimsoll.memory_snapshot()["segments"]]
    assert sum(sizes) >= shared() * MIB


@in_a_process
def test_more_than_the_total_is_refused_and_nothing_is_lost() -> None:
    plimsoll.install(policy="spill", dedicated="1GiB", shared="1GiB")
    warnings.simplefilter("ignore")
    x = full(900, 1)
    y = full(900, 2)
    with pytest.raises(torch.OutOfMemoryError, match="hared memory"):
        full(900, 3)
    assert holds(x, 1)
    assert holds(y, 2)
    z = full(50, 4)
    assert holds(z, 4)


@in_a_process
def test_spilled_memory_comes_back_at_its_address() -> None:
    plimsoll.install(policy="spill", dedicated="1GiB", shared="2GiB")
    warnings.simplefilter("ignore")
    x = full(900, 1)
    y = full(600, 2)
    address = y.data_ptr()
    del x
    torch.cuda.empty_cache()
    assert plimsoll.rebalance() > 0
    assert y.data_ptr() == address
    assert holds(y, 2)
    assert shared() == 0


@in_a_process
def test_placed_memory_is_shared_and_usable() -> None:
    plimsoll.install()
    with plimsoll.region("tables", prefer="shared"):
        x = full(100, 1)
    assert shared() == 100
    assert holds(x + 1, 2)
    use = plimsoll.region_uses("tables")[0]
    assert use.allocated_bytes == use.shared_reserved_bytes == 100 * MIB


@pytest.mark.alone
@pytest.mark.parametrize("backup", ["host", "disk"])
@in_a_process
def test_a_paused_region_comes_back_with_its_content_and_its_graph(backup: Backup) -> None:
    plimsoll.install()
    with plimsoll.region("r"):
        tensors = [full(m, m) for m in (1, 3, 64, 200)]
        x = torch.ones(1000, device="cuda")
        y = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(x, 3, out=y)
    for _ in range(3):
        addresses = [t.data_ptr() for t in tensors]
        free = torch.cuda.mem_get_info()[0]
        freed = plimsoll.pause("r", backup=backup)
        assert freed >= 268 * MIB
        assert torch.cuda.mem_get_info()[0] - free >= 260 * MIB
        assert plimsoll.is_paused("r")
        other = full(300, 9)
        del other
        plimsoll.resume("r")
        assert [t.data_ptr() for t in tensors] == addresses
        assert all(holds(t, m) for t, m in zip(tensors, (1, 3, 64, 200), strict=False))
        y.zero_()
        graph.replay()
        assert bool((y == 3).all())


@in_a_process
def test_a_region_on_disk_holds_no_memory_and_its_file_has_no_name() -> None:
    plimsoll.install()
    with plimsoll.region("r"):
        x = full(300, 7)
    with tempfile.TemporaryDirectory() as folder:
        plimsoll.pause("r", backup="disk", directory=folder)
        assert list(Path(folder).iterdir()) == []
        assert engine_of().host_reserved_bytes() <= 64 * MIB
    plimsoll.resume("r")
    assert holds(x, 7)


@pytest.mark.alone
@in_a_process
def test_a_full_disk_leaves_a_region_as_it_was() -> None:
    plimsoll.install()
    with plimsoll.region("r"):
        x = full(300, 7)
    free = torch.cuda.mem_get_info()[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * MIB, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(InputError, match="cannot write the backup"):
            plimsoll.pause("r", backup="disk", directory=folder)
        assert list(Path(folder).iterdir()) == []
    assert not plimsoll.is_paused("r")
    assert torch.cuda.mem_get_info()[0] == free
    assert holds(x, 7)
    assert plimsoll.pause("r") > 0
    plimsoll.resume("r")
    assert holds(x, 7)


@in_a_process
def test_spilled_memory_comes_back_by_itself_after_a_step() -> None:
    plimsoll.install(policy="spill", dedicated="1GiB", shared="2GiB")
    warnings.simplefilter("ignore")
    weight = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> None:
        weight.sum().backward()
        optimizer.step()

    x = full(900, 1)
    y = full(600, 2)
    step()
    assert shared() > 0
    del x
    torch.cuda.empty_cache()
    step()
    assert shared() == 0
    assert holds(y, 2)
    assert weight[0].item() == -2


@in_a_process
def test_what_cannot_be_is_refused_with_one_line() -> None:
    plimsoll.install()
    with plimsoll.region("r"):
        x = full(10, 1)
    plimsoll.pause("r")
    unknown: Any = "hope"

    def requests_in_paused_region() -> None:
        with plimsoll.region("r"):
            full(1, 1)

    refusals: tuple[Callable[[], object], ...] = (
        lambda: plimsoll.pause("r"),
        lambda: plimsoll.pause("unknown"),
        lambda: plimsoll.resume("unknown"),
        lambda: plimsoll.set_tiers(dedicated="-5GiB"),
        lambda: plimsoll.set_tiers(dedicated="9000GiB"),
        lambda: plimsoll.set_tiers(shared="9000GiB"),
        lambda: plimsoll.set_tiers(policy=unknown),
        lambda: plimsoll.region("r", prefer=unknown),
        lambda: plimsoll.offload("9000GiB").__enter__(),
    )
    for wrong in refusals:
        with pytest.raises(InputError) as caught:
            wrong()
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(RuntimeError, match="paused"):
        requests_in_paused_region()
    plimsoll.resume("r")
    with pytest.raises(InputError):
        plimsoll.resume("r")
    assert holds(x, 1)


@in_a_process
def test_an_optimizers_state_is_in_shared_memory_and_trains_alike() -> None:
    plimsoll.install()

    def train(*, place: bool) -> tuple[Any, int]:
        torch.manual_seed(0)
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        if place:
            plimsoll.place_optimizer(optimizer)
        for _ in range(5):
            model(torch.ones(8, 1024, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().clone(), shared()

    (a, none), (b, some) = train(place=False), train(place=True)
    assert torch.equal(a, b)
    assert none == 0
    assert some == 8
