"""Tests PrefetchLoader on simulated GPUs: order, values, streams, memory and errors."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import plimsoll
from plimsoll.offloading.data import collate
from plimsoll.offloading.data.collate import PinnedCollate
from plimsoll.offloading.data.copies import copy_async
from plimsoll.offloading.data.loader import PrefetchLoader
from tests.recordings import ROOT
from tests.simulated import on_simulated_gpus, output_of, simulate

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset  # noqa: E402

from tests.streams import RaceError, Streams  # noqa: E402

EXAMPLES = ROOT / "examples"
EXAMPLES = ROOT / "examples"
MIB = 1 << 20


def batch(number: int, size: int = 1000) -> dict[str, Any]:
    x = torch.arange(number, number + size)
    return {"x": x, "y": (x * 2, [number]), "z": x.to(torch.uint8)}


def check(found: dict[str, Any], number: int, size: int = 1000) -> None:
    """Checks that `found` is on the GPU, and has the values of `batch(number, size)`."""
    x = torch.arange(number, number + size)
    assert found["y"][1] == [number]
    # The comparison runs on the GPU, so it reads the batch in stream order.
    wanted = x, x * 2, x.to(torch.uint8)
    for tensor, values in zip((found["x"], found["y"][0], found["z"]), wanted, strict=True):
        assert tensor.is_cuda
        assert tensor.shape == values.shape
        assert tensor.dtype == values.dtype
        assert tensor.eq(values.to(tensor.device)).all().item()


def refused(kind: type[BaseException], action: Callable[[], object]) -> str:
    """Returns the message of the error that `action` raises, without keeping the error alive."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"{action} was not refused")


class Numbers(Dataset):  # type: ignore[misc]
    """A dataset. Each sample consists of its own index, in three forms.

    Reading a sample whose index is in `fails` raises a KeyError.
    """

    def __init__(self, fails: Iterable[int] = ()) -> None:
        self.fails = set(fails)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.fails:
            raise KeyError(f"sample {index}")
        return {"x": torch.full((200,), index), "n": index, "name": str(index)}


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[Any]:
        yield from (torch.full((3,), n) for n in range(8))


def holds(loader: Any, size: int = 4) -> None:
    """Checks that a loader of `Numbers` yields each batch, in order."""
    count = 0
    for number, found in enumerate(loader):
        first = number * size
        wanted = list(range(first, first + size))
        assert found["n"].tolist() == wanted
        assert found["name"] == [str(n) for n in wanted]
        assert found["x"].is_cuda
        assert found["x"][:, 7].tolist() == wanted
        count += 1
    assert count == 24 // size


@on_simulated_gpus()
def test_the_model_of_streams_finds_what_is_wrong() -> None:
    side = torch.cuda.Stream()
    x = torch.arange(1000, device="cuda")

    def no_wait() -> None:
        with torch.cuda.stream(side):
            y = torch.arange(1000).pin_memory().to("cuda", non_blocking=True)
        y + 1

    def no_wait_before_it() -> None:
        x.add_(1)
        with torch.cuda.stream(side):
            x.copy_(torch.arange(1000).pin_memory(), non_blocking=True)

    def freed_too_early() -> None:  # a loader on a side stream, without record_stream
        for _ in range(3):
            with torch.cuda.stream(side):
                y = torch.arange(1000).pin_memory().to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            y + 1
            del y

    def page_locked_memory_written_too_early() -> None:
        host = torch.arange(1000).pin_memory()
        x.copy_(host, non_blocking=True)
        host.zero_()

    for wrong in (
        no_wait, no_wait_before_it, freed_too_early, page_locked_memory_written_too_early
    ):  # fmt: skip
        with Streams():
            print(refused(RaceError, wrong))
        torch.cuda.synchronize()

    with Streams():
        event = torch.cuda.Event()
        host = torch.arange(1000).pin_memory()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.copy_(host, non_blocking=True)
            event.record()
        torch.cuda.current_stream().wait_event(event)
        x.add_(1)
        event.synchronize()
        host.zero_()


@on_simulated_gpus()
def test_every_batch_comes_once_in_order_with_its_values() -> None:
    for depth in (1, 2, 3, 7):
        batches = [batch(number, 10 + number) for number in range(12)]
        loader = PrefetchLoader(batches, "cuda", depth=depth)
        assert len(loader) == 12
        for _epoch in range(3):
            with Streams():
                count = 0
                for number, found in enumerate(loader):
                    check(found, number, 10 + number)
                    count += 1
            assert count == 12
        assert loader.statistics().batches == 36
        del found
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == 0


@pytest.mark.long
@on_simulated_gpus()
def test_random_programs() -> None:
    """Runs random loops: they vary sizes and speeds, keep batches, raise errors and end early."""

    class BrokenError(Exception):
        pass

    def run(seed: int) -> None:
        chance = random.Random(seed)
        count = chance.randrange(0, 12)
        sizes = [chance.choice([0, 1, 7, 1000, 20_000, 100_000]) for _ in range(count)]
        fails = {n for n in range(count) if chance.random() < 0.05}
        ends = chance.randrange(0, 15)
        is_pinned = chance.random() < 0.5

        class Source:
            def __init__(self) -> None:
                self.number = -1

            def __iter__(self) -> Source:
                return self

            def __next__(self) -> Any:
                self.number += 1
                if self.number >= count:
                    raise StopIteration
                if self.number in fails:
                    raise BrokenError(self.number)
                made = batch(self.number, sizes[self.number])
                return plimsoll.pin(made) if is_pinned else made

        kept = {}
        batches = iter(PrefetchLoader(Source(), "cuda", depth=chance.randrange(1, 5)))
        with Streams():
            for number in range(count):
                if number == ends:
                    break
                if chance.random() < 0.5:
                    torch.cuda._sleep(chance.randrange(1, 3_000_000))
                if chance.random() < 0.2:
                    torch.cuda.synchronize()
                try:
                    found = next(batches)
                except BrokenError as error:
                    assert error.args == (number,)  # noqa: PT017
                    assert number in fails
                    continue
                assert number not in fails
                check(found, number, sizes[number])
                if chance.random() < 0.3:
                    kept[number] = found
                elif chance.random() < 0.5:
                    del found
                other = torch.ones(chance.randrange(1, 100_000), device="cuda", dtype=torch.int64)
                other.mul_(3)
            else:
                if count:
                    refused(StopIteration, partial(next, batches))
            del batches
            for number, found in kept.items():
                check(found, number, sizes[number])

    for seed in range(60):
        run(seed)
        gc.collect()  # frees batches that the frames of errors still hold
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == 0, seed


def load_with_several_depths() -> None:
    chance = random.Random(1)
    sizes = [chance.randrange(1, 64) * MIB for _ in range(40)]

    def peak(depth: int, *, keeps: bool) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found: list[int] = []
        made = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes)
        for x in PrefetchLoader(made, "cuda", depth):
            found.append(x.numel())
            x.add_(1)
            if not keeps:
                del x
        assert found == sizes
        return int(torch.cuda.max_memory_allocated() - before)

    for depth in (1, 2, 3):
        most = max(sum(sizes[i : i + depth + 1]) for i in range(40))
        most += (depth + 1) * MIB  # a block may be up to 1 MiB larger than its batch
        assert peak(depth, keeps=True) <= most
        assert peak(depth, keeps=False) <= most


@pytest.mark.long
@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_the_device_holds_one_batch_more_than_the_depth(allocator: str) -> None:
    output_of(load_with_several_depths, "--allocator", allocator)


@on_simulated_gpus()
def test_the_next_copy_runs_while_the_program_computes() -> None:
    """Checks that a step takes only as long as the slower of copy and computation.

    In a plain loop, which copies each batch before it computes, a step takes the sum of both
    times. The simulated clock measures the times.
    """
    size = 100_000_000  # takes 4 ms on the bus
    batches = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(4)] * 6

    def step_ms(loader: Iterable[Any], seconds: float) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for number, _x in enumerate(loader):
            if number == 4:
                begin.record()
            torch.cuda._sleep(int(seconds * 1e9))
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / (len(batches) - 4)

    for step in (16e-3, 8e-3, 4e-3, 2e-3):
        found = step_ms(PrefetchLoader(batches, "cuda"), step)
        assert found < 1.05 * max(4, step * 1e3), (step, found)
        plain = step_ms((x.to("cuda", non_blocking=True) for x in batches), step)
        assert plain > 0.95 * (4 + step * 1e3), (step, plain)


@on_simulated_gpus()
def test_where_time_goes_is_told() -> None:
    x = torch.empty(100_000_000, dtype=torch.uint8, pin_memory=True)

    def slow() -> Iterator[Any]:
        for _ in range(5):
            time.sleep(0.02)
            yield x

    loader = PrefetchLoader(slow(), "cuda")
    for _ in loader:
        pass
    found = loader.statistics()
    assert found.batches == 5
    assert found.copied_bytes == 5 * x.nbytes
    assert 0.1 <= found.loader_seconds <= found.total_seconds
    assert found.slowest == "loader"
    assert 0 < found.copy_seconds <= 0.02  # the copy takes 4 ms on the bus
    assert "The loader is the slowest part" in str(loader)


@on_simulated_gpus()
def test_errors_of_the_loader_reach_the_program_as_they_are() -> None:

    class MineError(Exception):
        pass

    mine = MineError("it is mine")

    def source() -> Iterator[Any]:
        yield batch(0)
        yield batch(1)
        raise mine

    found: list[Any] = []
    with pytest.raises(MineError) as caught:  # noqa: PT012
        for b in PrefetchLoader(source(), "cuda", depth=4):
            check(b, len(found))
            found.append(b)
    assert caught.value is mine
    assert len(found) == 2
    frames = [frame.name for frame in traceback.extract_tb(mine.__traceback__)]
    assert frames[-1] == "source", frames

    class Unready:
        def __iter__(self) -> Iterator[Any]:
            raise mine

    assert refused(MineError, lambda: iter(PrefetchLoader(Unready(), "cuda"))) == "it is mine"
    no_loader: Any = 5
    refused(TypeError, lambda: iter(PrefetchLoader(no_loader, "cuda")))
    refused(TypeError, lambda: len(PrefetchLoader(source(), "cuda")))

    class Interrupted:
        def __iter__(self) -> Iterator[Any]:
            yield batch(0)
            raise KeyboardInterrupt

    refused(KeyboardInterrupt, lambda: list(PrefetchLoader(Interrupted(), "cuda")))


@on_simulated_gpus()
def test_an_end_before_the_end_leaves_nothing_behind() -> None:
    gc.disable()
    loader = PrefetchLoader([batch(n, 10_000) for n in range(20)], "cuda", depth=3)
    for _ in range(5):
        for number, found in enumerate(loader):
            check(found, number, 10_000)
            if number == 4:
                break
        del found
        assert torch.cuda.memory_allocated() == 0
        pinned = loader.statistics().pinned_bytes
    assert loader.statistics().pinned_bytes == pinned > 0

    def failing() -> Iterator[Any]:
        yield batch(0)
        yield batch(1)
        raise ValueError

    for _found in PrefetchLoader(failing(), "cuda", depth=3):
        break  # leaves the loop before the error is raised
    del _found
    gc.collect()
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.long
@on_simulated_gpus()
def test_batches_of_any_structure() -> None:
    from transformers import BatchEncoding

    class Pair(NamedTuple):
        a: Any
        b: object

    @dataclasses.dataclass(frozen=True)
    class Record:
        a: Any
        b: object

    x = torch.arange(6).view(2, 3)
    nothing = object()
    there = torch.ones(2, device="cuda")
    batches = [
        x,
        (x,),
        [x, [x]],
        {"a": x},
        Pair(x, 1),
        Record(x, "text"),
        BatchEncoding({"input_ids": x}),
        nothing,
        None,
        5,
        (),
        there,
        x.t(),
        x[:, ::2],
        x.expand(4, 2, 3),
        torch.tensor(3),
        torch.empty(0, 3),
        x.float().requires_grad_(),
    ]
    with Streams():
        found = list(PrefetchLoader(batches, "cuda"))
    assert [type(f) for f in found] == [type(b) for b in batches]
    assert found[2][0] is found[2][1][0], "a tensor that occurs twice is copied once"
    assert found[7] is nothing
    assert found[11] is there
    assert found[5].a.is_cuda
    assert found[5].b == "text"
    assert found[4].b == 1
    assert found[6]["input_ids"].tolist() == x.tolist()
    assert not batches[6]["input_ids"].is_cuda
    for index in (12, 13, 14, 15, 16):
        assert found[index].is_cuda, index
        assert found[index].tolist() == batches[index].tolist(), index
    assert found[12].stride() == x.t().stride()
    assert found[17].requires_grad
    assert found[17].is_leaf


@on_simulated_gpus()
def test_what_is_made_in_inference_mode_can_be_trained_with() -> None:
    batches = iter(PrefetchLoader([torch.ones(4) for _ in range(4)], "cuda"))
    with torch.inference_mode():
        first = next(batches)
    weight = torch.ones(4, device="cuda", requires_grad=True)
    for x in (first, *batches):
        (weight * x).sum().backward()


@pytest.mark.long
@on_simulated_gpus("--gpus", "2")
def test_another_stream_and_another_gpu() -> None:
    with Streams():
        other = torch.cuda.Stream()
        loader = PrefetchLoader([batch(n) for n in range(10)], "cuda")
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            for number, found in enumerate(loader):
                check(found, number)
        del found
        first = PrefetchLoader([batch(n) for n in range(4)], "cuda:0")
        second = PrefetchLoader([batch(n) for n in range(4)], "cuda:1", depth=1)
        for number, found in enumerate(first):
            check(found, number)
            for inner, also in enumerate(second):
                check(also, inner)
                assert also["x"].device.index == 1
            assert found["x"].device.index == 0
        with torch.cuda.device(1):
            assert next(iter(PrefetchLoader([batch(0)], "cuda")))["x"].device.index == 1
    # The current stream alternates. So most batches are copied while one stream is current, and
    # used on the other stream.
    batches = iter(PrefetchLoader([batch(n) for n in range(10)], "cuda", depth=3))
    for number in range(10):
        stream = (torch.cuda.default_stream(), other)[number % 2]
        with torch.cuda.stream(stream):
            check(next(batches), number)


@on_simulated_gpus("--gpus", "2")
def test_a_slot_is_written_again_when_every_gpu_has_read_it() -> None:

    loader = DataLoader(
        Numbers(), 4, num_workers=1, persistent_workers=True, collate_fn=PinnedCollate()
    )
    for _ in range(3):
        # Page-locks the slots. A slot is shared memory into which a worker writes one batch.
        holds(PrefetchLoader(loader, "cuda"))
    read = {0: 0, 1: 0}
    gpu = 1
    for found in loader:  # not `enumerate`, which keeps its last pair alive
        slot = collate._fillings[found["x"].untyped_storage().data_ptr()]
        gpu = 1 - gpu
        with torch.cuda.device(gpu):
            torch.cuda._sleep(1_000_000_000)
            _there = found["x"].to("cuda", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        assert not event.query()
        del found
        if slot.mapping.is_locked:
            assert event.query()
            read[gpu] += 1
    assert all(read.values()), read


@on_simulated_gpus("--gpus", "2")
def test_slots_are_locked_by_way_of_the_gpu_that_they_go_to() -> None:
    """Page-locking on any other GPU would create a context there, which takes memory."""
    asked = []

    def register(*_: Any) -> int:
        asked.append(torch.cuda.current_device())
        return 0

    torch.cuda.cudart().cudaHostRegister = register
    loader = DataLoader(Numbers(), 4, num_workers=1, collate_fn=PinnedCollate())
    holds(PrefetchLoader(loader, "cuda:1"))
    assert set(asked) == {1}, asked


@pytest.mark.long
@on_simulated_gpus("--host-memory", "512GiB")
def test_when_memory_is_short_the_loader_does_not_get_ahead() -> None:
    x = torch.empty(30 << 30, dtype=torch.uint8, pin_memory=True)
    assert sum(1 for _ in PrefetchLoader([x] * 6, "cuda", depth=4)) == 6
    batches = iter(PrefetchLoader([x] * 6, "cuda", depth=1))
    held = next(batches), next(batches)
    refused(torch.OutOfMemoryError, lambda: next(batches))
    del held
    assert sum(1 for _ in batches) == 4


@pytest.mark.long
@pytest.mark.parametrize("collate", [None, "pinned"])
@on_simulated_gpus()
def test_worker_processes(collate: str | None) -> None:
    function = PinnedCollate() if collate == "pinned" else None
    several: list[dict[str, Any]] = [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "pin_memory": True},
    ]
    for options in several:
        loader = PrefetchLoader(DataLoader(Numbers(), 4, collate_fn=function, **options), "cuda")
        assert len(loader) == 6
        assert loader.batch_size == 4
        for _ in range(3):
            holds(loader)
        for _ in loader:
            break
        holds(loader)

    streamed = DataLoader(Stream(), 2, num_workers=1, collate_fn=function)
    found = [x[:, 0].tolist() for x in PrefetchLoader(streamed, "cuda")]
    assert found == [[n, n + 1] for n in (0, 2, 4, 6)]


@pytest.mark.parametrize("workers", [0, 2])
@on_simulated_gpus()
def test_what_fails_in_a_dataset_is_the_datasets_own_error(workers: int) -> None:
    failing = DataLoader(Numbers(fails=[13]), 4, num_workers=workers)
    count = 0
    with pytest.raises(KeyError, match="sample 13"):  # noqa: PT012
        for _ in PrefetchLoader(failing, "cuda", depth=4):
            count += 1
    assert count == 3


@on_simulated_gpus()
def test_a_dataset_that_cannot_be_pickled_is_told_by_the_loader() -> None:
    numbers = Numbers()
    numbers.function = lambda: 0
    loader = DataLoader(numbers, 4, num_workers=1, multiprocessing_context="spawn")
    plain = refused(Exception, lambda: iter(loader))
    assert refused(Exception, lambda: iter(PrefetchLoader(loader, "cuda"))) == plain


@on_simulated_gpus()
def test_epochs_reach_samplers_and_datasets() -> None:
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0)
    loader = PrefetchLoader(DataLoader(Numbers(), 4, sampler=sampler), "cuda")
    loader.set_epoch(3)
    assert sampler.epoch == 3
    assert loader.sampler is sampler

    class Own(list[int]):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    own = Own()
    PrefetchLoader(own, "cuda").set_epoch(5)
    assert own.epoch == 5
    PrefetchLoader([], "cuda").set_epoch(5)


def ask_for_bad_devices_and_depths() -> None:
    devices: tuple[Any, ...] = ("cuda:9", "tpu9", "meta", None)
    for device in devices:
        print(refused(plimsoll.InputError, partial(PrefetchLoader, [], device)))
    depths: tuple[Any, ...] = (0, "2")
    for depth in depths:
        print(refused(plimsoll.InputError, partial(PrefetchLoader, [], "cuda", depth)))
    print(refused(plimsoll.InputError, lambda: copy_async([], "cuda:1")))


def test_bad_devices_and_depths_are_one_clear_line() -> None:
    out = output_of(ask_for_bad_devices_and_depths)
    nine, unknown, meta, none, zero, text, one = out.splitlines()
    assert nine == "there is no GPU 9; there are 1"
    assert unknown == "not a device: 'tpu9'"
    assert none == "not a device: None"
    assert meta == "batches go to a GPU (cuda) or stay on the host (cpu), not to meta"
    assert zero == "a depth is a number above zero, not 0"
    assert text == "a depth is a number above zero, not '2'"
    assert one == "there is no GPU 1; there are 1"


@on_simulated_gpus("--gpus", "2")
def test_copies_to_from_and_between_gpus() -> None:
    x = torch.arange(5000)
    with Streams():
        up = copy_async({"x": x, "n": 3}, "cuda")
        there = up.wait()
        assert there["n"] == 3
        assert there["x"].is_cuda
        assert up.wait() is there
        there["x"].mul_(2)
        across = copy_async(there, "cuda:1")
        back = copy_async(there["x"], "cpu")
        host = back.wait()
        assert host.is_pinned()
        assert torch.equal(host, x * 2)
        assert back.is_done()
        moved = across.wait()["x"]
        assert moved.device.index == 1
        assert moved.eq((x * 2).to("cuda:1")).all().item()
        assert copy_async(host, "cpu").wait() is host
    del up, there, across, back, moved
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated(0) == torch.cuda.memory_allocated(1) == 0
    with Streams():  # checks that memory freed during its copy is not reused too early
        for _ in range(20):
            there = torch.ones(50_000, device="cuda", dtype=torch.int64)
            copy = copy_async(there, "cpu")
            del there, copy
            copy_async(torch.arange(50_000), "cuda")
    assert torch.cuda.memory_allocated(0) == 0


def workload(loader_of: Callable[[Any], Iterable[Any]], steps: int = 30) -> tuple[int, int]:
    """Trains. Returns the peaks of reserved and allocated memory."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(4096, 1000),
    ).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    sizes = [32 + 8 * (i % 5) for i in range(steps)]
    data = [
        (torch.randn(n, 3, 96, 96).pin_memory(), torch.randint(0, 1000, (n,)).pin_memory())
        for n in sizes
    ]
    for x, y in loader_of(data):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()


def plain(data: Iterable[Any]) -> Iterator[Any]:
    for x, y in data:
        yield x.to("cuda"), y.to("cuda")


def train_with(loader: str) -> None:
    loaders = {"plain": plain, "prefetching": lambda data: PrefetchLoader(data, "cuda")}
    print(*workload(loaders[loader]))


@on_simulated_gpus("--allocator", "elastic")
def test_a_training_loop_reserves_hardly_more_than_it_allocates() -> None:
    reserved, allocated = workload(lambda data: PrefetchLoader(data, "cuda"))
    assert reserved <= 1.1 * allocated, reserved / allocated


@pytest.mark.long
def test_under_pytorchs_rules_the_loader_adds_its_batches_and_no_more() -> None:
    """Allows the loader to reserve three batches and 32 MiB more than a plain loop reserves."""
    found = [
        output_of(train_with, "--allocator", "native", arguments=[loader])
        for loader in ("plain", "prefetching")
    ]
    (without, _), (reserved, allocated) = (map(int, line.split()) for line in found)
    batch = 64 * 3 * 96 * 96 * 4
    assert reserved <= without + 3 * batch + 32 * 2**20, (without, reserved, allocated)


# --- the examples --------------------------------------------------------------------------------


def test_the_example_for_lightning_says_where_the_time_went() -> None:
    done = simulate(EXAMPLES / "data_lightning.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 batches, 4.00 KiB copied, in ")


def test_the_example_for_the_trainer_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('none here')\n")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "data_trainer.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "data_trainer.py needs transformers: pip install transformers\n"
