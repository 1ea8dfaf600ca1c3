"""Tests how plimsoll counts the samples that a program processes.

plimsoll counts the samples in the batches of data loaders. If a program has no loader,
plimsoll counts the samples in the arguments of module calls.
"""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.base.watchers import Watchers
from plimsoll.prediction.child.sample_count import SampleCount

torch = pytest.importorskip("torch")


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> SampleCount:
    """Returns a `SampleCount` that observes PyTorch until the test ends."""
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(kind, "__next__", kind.__next__)
    for module in (torch.autograd, torch.autograd.graph):
        monkeypatch.setattr(module, "_engine_run_backward", module._engine_run_backward)
    count = SampleCount()
    count.install(torch, Watchers())
    return count


def called(count: SampleCount, module: Any, data: Any, *, is_outermost: bool = True) -> Any:
    count.note_call((data,), is_outermost=is_outermost)
    result = module(data)
    count.note_result(result)
    return result


class Loader:
    """A stand-in for a loader's iterator."""

    _auto_collation = True


def loader(samples: int, batch: int) -> Any:
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(samples, 4)), batch
    )


def test_micro_batches_add_up_and_views_of_a_batch_do_not(count: SampleCount) -> None:
    model = torch.nn.Linear(4, 4)
    for _ in range(3):
        called(count, model, torch.randn(8, 4)).sum().backward()
    count.end_step(1)
    assert count.so_far().called == {1: 24}
    first, second = (called(count, model, torch.randn(8, 4)) for _ in range(2))
    (first * second).sum().backward()
    count.end_step(1)
    assert count.so_far().called == {1: 32}


def test_what_a_generator_makes_is_no_new_sample(count: SampleCount) -> None:
    judge, maker = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)
    called(count, judge, torch.randn(8, 4)).sum().backward()
    fake = called(count, maker, torch.randn(8, 2), is_outermost=False)
    called(count, judge, fake.detach()).sum().backward()
    count.end_step(1)
    called(count, judge, fake).sum().backward()
    count.end_step(2)
    assert count.so_far().called == {1: 8, 2: 8}
    assert count.so_far().since(SampleCount().so_far()) == 8


def test_loaders_say_it_best(count: SampleCount) -> None:
    before = count.so_far()
    for (batch,) in loader(20, 8):
        count.note_call((batch,), is_outermost=True)
    count.end_step(1)
    assert count.so_far().since(before) == 20


def test_batches_that_reach_no_backward_pass_are_no_samples_of_training(
    count: SampleCount,
) -> None:
    model, steps = torch.nn.Linear(4, 4), []
    for (batch,) in loader(24, 8):
        before = count.so_far()
        called(count, model, batch).sum().backward()
        count.end_training_step(1)
        steps.append(count.so_far().since(before))
        for (held_out,) in loader(100, 10):
            called(count, model, held_out)
    assert steps == [8, 8, 8]


def test_batches_that_are_loaded_ahead_of_a_backward_pass_count(count: SampleCount) -> None:
    model, batches = torch.nn.Linear(4, 4), iter(loader(24, 4))
    before = count.so_far()
    for ahead in [[next(batches) for _ in range(3)] for _ in range(2)]:
        for (batch,) in ahead:
            called(count, model, batch).sum().backward()
        count.end_training_step(1)
    assert count.so_far().since(before) == 24


def test_an_evaluation_ends_where_the_next_batch_is_loaded() -> None:
    ends: list[None] = []
    count = SampleCount(lambda: ends.append(None))
    train, held_out, batch = Loader(), Loader(), torch.zeros(8, 4)
    for _ in range(2):
        count._note_batch(held_out, batch)
        count.note_call((batch,), is_outermost=True)
    assert len(ends) == 1
    count._leave_evaluated(held_out)
    assert len(ends) == 2
    count.note_call((batch,), is_outermost=True)  # a framework evaluates the last batch later
    count._note_batch(train, batch)
    assert len(ends) == 3
    count.note_backward()
    count._note_batch(train, batch)
    assert len(ends) == 3
