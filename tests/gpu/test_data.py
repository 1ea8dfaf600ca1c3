"""Tests PrefetchLoader on a real GPU: values, streams, memory, page-locking and errors."""

from __future__ import annotations

import gc
import random
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import plimsoll
from plimsoll.offloading.data.collate import PinnedCollate
from plimsoll.offloading.data.copies import copy_async
from plimsoll.offloading.data.loader import PrefetchLoader

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 2**20


def batch(number: int, size: int) -> dict[str, Any]:
    x = torch.arange(number, number + size)
    return {"x": x, "y": [x.float() * 2, number]}


def wrong(found: Any, number: int, size: int) -> Any:
    """Counts wrong values on the GPU. Returns a tensor, so that the host need not wait."""
    x = torch.arange(number, number + size, device=found["x"].device)
    assert found["x"].shape == x.shape
    assert found["y"][1] == number
    return (found["x"] != x).sum() + (found["y"][0] != x.float() * 2).sum()


def busy(seconds: float) -> None:
    """Queues GPU work that takes about this long."""
    torch.cuda._sleep(int(seconds * 1.7e9))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_values_of_batches_of_random_sizes(depth: int, pinned: bool) -> None:
    chance = random.Random(depth)
    sizes = [chance.choice([0, 1, 1000, 300_000, 2_000_000]) for _ in range(60)]

    def source() -> Iterator[Any]:
        for number, size in enumerate(sizes):
            made = batch(number, size)
            yield plimsoll.pin(made) if pinned else made

    kept = {}
    differ = torch.zeros((), dtype=torch.long, device="cuda")
    for number, found in enumerate(PrefetchLoader(source(), "cuda", depth)):
        if chance.random() < 0.5:
            busy(chance.random() * 3e-3)
        differ += wrong(found, number, sizes[number])
        other = torch.full((chance.randrange(1, MIB),), -1.0, device="cuda")
        other.mul_(3)
        if chance.random() < 0.2:
            kept[number] = found
        if chance.random() < 0.3:
            del found
    for number, found in kept.items():
        differ += wrong(found, number, sizes[number])
    assert differ.item() == 0


def test_batches_are_never_overwritten_while_work_is_queued() -> None:
    """Lets the host run far ahead of the GPU."""
    sums = []
    size = 8 * MIB
    source = [torch.full((size,), n, dtype=torch.uint8).pin_memory() for n in range(8)] * 6
    for x in PrefetchLoader(source, "cuda"):
        busy(5e-3)
        sums.append(x.sum())
        x.fill_(255)
    assert [s.item() for s in sums] == [size * (n % 8) for n in range(48)]


def test_the_device_holds_one_batch_more_than_the_depth() -> None:
    chance = random.Random(0)
    sizes = [chance.randrange(20, 64) * MIB for _ in range(30)]
    for depth in (1, 2, 3):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for x in PrefetchLoader((torch.zeros(s, dtype=torch.uint8) for s in sizes), "cuda", depth):
            x.add_(1)
        del x
        most = max(sum(sizes[i : i + depth + 1]) for i in range(30)) + (depth + 1) * MIB
        assert torch.cuda.max_memory_allocated() - before <= most


def test_an_early_end_and_an_error_leave_nothing_behind() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    mine = KeyError("mine")

    def source() -> Iterator[Any]:
        yield from (batch(n, 100_000) for n in range(5))
        raise mine

    for number, _ in enumerate(PrefetchLoader(source(), "cuda", depth=3)):
        if number == 1:
            break
    del _
    assert torch.cuda.memory_allocated() == before
    batches = iter(PrefetchLoader(source(), "cuda", depth=3))
    for number in range(5):
        assert wrong(next(batches), number, 100_000).item() == 0
    with pytest.raises(KeyError) as caught:
        next(batches)
    assert caught.value is mine


def test_streams_of_the_program() -> None:
    source = [batch(n, 500_000) for n in range(20)]
    side = torch.cuda.Stream()
    differ = []
    batches = iter(PrefetchLoader(source, "cuda", depth=3))
    for number in range(20):
        with torch.cuda.stream(side if number % 2 else torch.cuda.default_stream()):
            found = next(batches)
            busy(1e-3)
            differ.append(wrong(found, number, 500_000))
            del found
            torch.full((500_000,), -1, device="cuda")
    torch.cuda.synchronize()
    assert sum(d.item() for d in differ) == 0


def test_nested_loops() -> None:
    outer = PrefetchLoader([batch(n, 50_000) for n in range(4)], "cuda")
    inner = PrefetchLoader([batch(n, 50_000) for n in range(3)], "cuda", depth=1)
    for number, found in enumerate(outer):
        for also, other in enumerate(inner):
            assert wrong(other, also, 50_000).item() == 0
        assert wrong(found, number, 50_000).item() == 0


def test_where_time_goes_is_measured() -> None:
    x = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    loader = PrefetchLoader([x] * 20, "cuda")
    for _ in loader:
        pass
    found = loader.statistics()
    assert found.batches == 20
    assert found.copied_bytes == 20 * x.nbytes
    assert found.copy_seconds > 0.5 * found.copied_bytes / 55e9


def test_copies_to_the_gpu_and_back() -> None:
    x = torch.arange(4 * MIB)
    for _ in range(20):
        there = copy_async({"x": x, "n": 1}, "cuda").wait()
        there["x"].mul_(2)
        back = copy_async(there, "cpu")
        del there
        torch.full((4 * MIB,), -1, device="cuda")
        host = back.wait()
        assert host["x"].is_pinned()
        assert torch.equal(host["x"], x * 2)
        assert host["n"] == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_copies_between_gpus() -> None:
    for _ in range(20):
        x = torch.arange(MIB, device="cuda:0")
        copy = copy_async(x, "cuda:1")
        del x
        torch.full((MIB,), -1, device="cuda:0")
        y = copy.wait()
        assert torch.equal(y.cpu(), torch.arange(MIB))
    for number, found in enumerate(PrefetchLoader([batch(n, 1000) for n in range(9)], "cuda:1")):
        assert found["x"].device.index == 1
        assert wrong(found, number, 1000).item() == 0


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((100_000,), index, dtype=torch.int32), "n": index}


def test_workers_do_not_inherit_streams_that_wait_for_the_collector() -> None:
    left: list[Any] = [torch.cuda.Stream() for _ in range(4)]
    left.append(left)
    del left
    loader = torch.utils.data.DataLoader(Collected(), 4, num_workers=2)
    for batch in PrefetchLoader(loader, "cuda"):
        assert batch.shape == (4,)


class Collected(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """A dataset that runs Python's garbage collector in the worker whenever it reads a sample."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_write_into_page_locked_memory(workers: int) -> None:
    loader = torch.utils.data.DataLoader(
        Numbers(),
        4,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=PinnedCollate(),
    )
    ahead = PrefetchLoader(loader, "cuda")
    before = ahead.statistics().pinned_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            differ = []
            for number, found in enumerate(ahead):
                wanted = torch.arange(4 * number, 4 * number + 4, device="cuda")
                busy(1e-3)
                differ.append((found["x"] != wanted[:, None]).sum() + (found["n"] != wanted).sum())
            assert len(differ) == 16
            assert sum(d.item() for d in differ) == 0
    # Without workers, `n` is in pageable memory, so PrefetchLoader copies it into page-locked
    # buffers of at most 256 MiB. With workers, PrefetchLoader must make no buffers.
    small = 2**20
    assert ahead.statistics().pinned_bytes - before <= (256 * small if workers == 0 else 0)


def test_batches_of_workers_are_safe_without_a_prefetch_loader() -> None:
    loader = torch.utils.data.DataLoader(
        Numbers(), 4, num_workers=2, persistent_workers=True, collate_fn=PinnedCollate()
    )
    for _ in PrefetchLoader(loader, "cuda"):
        pass  # one epoch page-locks the workers' memory
    differ = []
    for number, found in enumerate(loader):
        wanted = torch.arange(4 * number, 4 * number + 4, device="cuda")
        busy(3e-3)
        x = found["x"].to("cuda", non_blocking=True)
        del found
        differ.append((x != wanted[:, None]).sum())
    assert sum(d.item() for d in differ) == 0


def test_memory_that_cannot_be_locked_is_told_and_copied() -> None:
    from plimsoll.offloading.data import collate

    storage = torch.UntypedStorage._new_shared(MIB)
    first, second = collate._Mapping(storage), collate._Mapping(storage)
    first.lock()
    assert first.is_locked
    with pytest.warns(UserWarning, match="cannot page-lock"):
        second.lock()
    assert not second.is_locked
    assert torch.ones(3, device="cuda").sum().item() == 3  # no CUDA error is left pending
