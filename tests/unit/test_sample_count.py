"""Tests how plimsoll counts the samples that a program processes.

plimsoll counts the samples in the batches of data loaders. In a program without a loader, it
counts the samples with which modules are called.
"""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.base.watchers import Watchers
from plimsoll.prediction.child.sample_count import SampleCount

torch = pytest.importorskip("torch")


def called(count: SampleCount, module: Any, data: Any) -> Any:
    count.note_call(module, (data,), is_outermost=True)
    result = module(data)
    count.note_result(result)
    return result


def test_micro_batches_add_up_and_views_of_a_batch_do_not() -> None:
    count, model = SampleCount(), torch.nn.Linear(4, 4)
    for _ in range(3):
        called(count, model, torch.randn(8, 4)).sum().backward()
    count.end_step(1)
    assert count.so_far().called == {1: 24}
    first, second = (called(count, model, torch.randn(8, 4)) for _ in range(2))
    (first * second).sum().backward()
    count.end_step(1)
    assert count.so_far().called == {1: 32}


def test_what_a_generator_makes_is_no_new_sample() -> None:
    count, judge, maker = SampleCount(), torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)
    called(count, judge, torch.randn(8, 4)).sum().backward()
    fake = called(count, maker, torch.randn(8, 2))
    called(count, judge, fake.detach()).sum().backward()
    count.end_step(1)
    called(count, judge, fake).sum().backward()
    count.end_step(2)
    assert count.so_far().called == {1: 8, 2: 8}
    assert count.so_far().since(SampleCount().so_far()) == 8


def test_loaders_say_it_best(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(kind, "__next__", kind.__next__)
    count, before = SampleCount(), SampleCount().so_far()
    count.watch_loaders(torch, Watchers())
    data = torch.utils.data.TensorDataset(torch.randn(20, 4))
    for (batch,) in torch.utils.data.DataLoader(data, 8):
        count.note_call(torch.nn.Linear(4, 4), (batch,), is_outermost=True)
    count.end_step(1)
    assert count.so_far().since(before) == 20
