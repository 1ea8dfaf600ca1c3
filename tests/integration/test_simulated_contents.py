"""Tests what simulated GPUs know of memory's contents after unusual writes."""

from __future__ import annotations

import math
import threading
import time

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

MANY = 1 << 26  # elements: too many for plimsoll to compute their values


@on_simulated_gpus()
def test_conjugated_numbers_are_read_as_such() -> None:
    z = torch.complex(torch.ones(2), torch.ones(2)).cuda()
    assert z.conj()[0].item() == 1 - 1j
    assert (z.conj() * 1).cpu().tolist() == [1 - 1j] * 2
    assert z.conj().clone().cpu().tolist() == [1 - 1j] * 2
    assert z.conj().imag.tolist() == [-1, -1]


@on_simulated_gpus()
def test_interleaved_writes_make_a_whole() -> None:
    x = torch.empty(6, device="cuda")
    x[0::2] = 1
    x[1::2] = 2
    for _ in range(12):
        assert x.tolist() == [1, 2, 1, 2, 1, 2]
    y = torch.empty(1000, 1000, device="cuda")
    y[:, :500] = torch.ones(1000, 500, device="cuda")
    y[:, 500:] = torch.ones(1000, 500, device="cuda")
    assert (y == 1).all()


@on_simulated_gpus()
def test_a_storage_that_grows_keeps_what_it_had() -> None:
    x = torch.arange(4.0).cuda()
    x.resize_(2, 8)
    assert x[0, :4].tolist() == [0, 1, 2, 3]


@on_simulated_gpus()
def test_outputs_that_are_given_depend_on_inputs_alone() -> None:
    x = torch.tensor([3.0, 1, 2, 5, 4, 6]).cuda()
    values, places = torch.empty(6, device="cuda"), torch.empty(6, device="cuda").long()
    torch.sort(x, out=(values, places))
    for _ in range(12):
        assert values.tolist() == [1, 2, 3, 4, 5, 6]


@on_simulated_gpus()
def test_whole_numbers_and_truths_are_counted_as_such() -> None:
    tossed = torch.randint(0, 2, (MANY,), device="cuda")
    assert not (tossed > 0).all()
    assert not (tossed < 1).all()
    zeros = torch.zeros(MANY, device="cuda")
    assert zeros[tossed > 0].numel() == pytest.approx(MANY / 2, rel=0.01)
    numbers = torch.randn(MANY, device="cuda")
    assert numbers.any()
    assert numbers.count_nonzero().item() == pytest.approx(MANY, rel=0.01)


@on_simulated_gpus()
def test_nobody_is_sure_of_what_a_rule_does_not_know() -> None:
    rows = torch.softmax(torch.randn(8, 8, 1024, 2048, device="cuda"), -1)
    assert (rows.sum(-1) - 1).abs().max().item() < 1e-6
    sums = rows.sum(-2)[0, 0, :100].tolist()
    assert any(one != 1 for one in sums)
    ones = torch.ones(MANY, device="cuda")
    assert ones.cumsum(0)[5].item() != 1
    assert (torch.full((MANY,), 2.7, device="cuda").int() == 2).all()
    assert torch.arange(20.0).cuda().kthvalue(3).values.item() == 2
    missing = torch.full((MANY,), math.nan, device="cuda")
    assert not (torch.isnan(missing).any().item() is False and missing[0].item() == missing[0])


@on_simulated_gpus()
def test_running_statistics_are_not_what_they_were() -> None:
    norm = torch.nn.BatchNorm2d(8).cuda()
    norm(torch.randn(64, 8, 128, 128, device="cuda").sin() + 7)
    assert norm.running_mean.tolist() != [0] * 8
    small = torch.nn.BatchNorm1d(2).cuda()
    small(torch.tensor([[1.0, 2], [3, 4]]).cuda())
    assert small.num_batches_tracked.item() == 1


@on_simulated_gpus()
def test_tensors_on_two_devices_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="different devices"):
        torch.equal(torch.ones(2, device="cuda"), torch.ones(2))


@on_simulated_gpus()
def test_a_loss_that_is_read_often_stays_a_number() -> None:
    x = torch.randn(MANY, device="cuda").sin()
    for _ in range(300):
        x.mul_(1.0)
        math.exp((x * x).mean().item())
    assert x.half().mean().item() < 60_000


@on_simulated_gpus()
def test_what_is_drawn_beyond_the_budget_is_drawn() -> None:
    # plimsoll computes values up to a budget of bytes, which this tensor uses up.
    torch.empty(8 << 20, device="cuda").normal_()
    kept = [torch.ones(1 << 20) for _ in range(50)]
    for _ in range(30):
        x = torch.randn(1000, 1000, device="cuda").sin_()
        assert (x == 0).sum(0, True).sum().item() == 0
        to = torch.full((1000, 100), math.nan)
        to.copy_(x[:, :100])
        assert to.abs().min() > 0
    assert len(kept) == 50


@on_simulated_gpus()
def test_whole_random_numbers_have_their_own_range() -> None:
    numbers = torch.empty(MANY, dtype=torch.long, device="cuda").random_()
    assert not (numbers < 256).all()
    assert (numbers >= 0).all()
    above = torch.empty(MANY, dtype=torch.int, device="cuda").random_(1000, None)
    assert (above >= 1000).all()
    assert not (above < 2000).all()
    assert torch.empty(MANY, dtype=torch.int, device="cuda").random_(5, 9).max().item() <= 8


@on_simulated_gpus()
def test_numbers_are_rounded_to_decimals() -> None:
    u = torch.rand(MANY, device="cuda")
    assert not (u.round(decimals=1) == u.round(decimals=1).round()).all()
    assert torch.full((MANY,), 0.25, device="cuda").round(decimals=2)[0].item() == 0.25
    x, mask = torch.native_dropout(u, 0.5, False)
    assert mask.all()
    assert not (x > 1).any()


@on_simulated_gpus()
def test_places_are_in_order_along_the_dimension_that_is_sorted() -> None:
    x = torch.randn(64, 1 << 20, device="cuda").sin()
    places = x.sort(dim=0).indices
    assert places.max().item() <= 63
    assert x.argsort(dim=1).max().item() > 63


@on_simulated_gpus("--gpus", "2")
def test_threads_may_share_tensors() -> None:
    shared = [torch.ones(400, 400, device=f"cuda:{i}") for i in range(2)]
    stop = time.monotonic() + 3
    failures: list[BaseException] = []

    def work(own: int) -> None:
        try:
            while time.monotonic() < stop:
                x = shared[own % 2]
                x.copy_(torch.full((400, 400), float(own)))
                x[:, own].mul_(2)
                (x @ x).sum().item()
                x.normal_()
                torch.as_strided(x, (400, 400), (400, 1)).sin_()
                shared[1 - own % 2].copy_(x)
                x.expand(400, 400, 400).mul(1.0)  # too large to compute
                x.nonzero()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@on_simulated_gpus()
def test_a_replay_makes_other_numbers() -> None:
    x = torch.zeros(4, device="cuda")
    flag = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
        copy = x.clone()
        zeros = torch.zeros(4, device="cuda")
        flag.copy_(y[:1])
    seen = set()
    for step in range(4):
        x.fill_(step)
        graph.replay()
        assert y.tolist() != [1, 1, 1, 1]
        assert copy.tolist() != [0, 0, 0, 0]
        assert zeros.tolist() == [0, 0, 0, 0]
        assert flag.item() != 0
        seen.add(y[0].item())
    assert len(seen) == 4


@on_simulated_gpus()
def test_a_loop_that_waits_for_a_captured_loss_ends() -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = (x * x).mean()
    steps = 0
    while True:
        graph.replay()
        steps += 1
        if loss.item() < 1e-3:
            break
    assert steps < 1000


@on_simulated_gpus()
def test_a_strided_write_changes_what_it_writes_alone() -> None:
    for x in (torch.zeros(200, MANY // 100, device="cuda"), torch.ones(MANY, 2, device="cuda")):
        before = x[3, 1].item()
        x[:, 0] = 5
        assert x[7, 1].item() in (before, 5)
        written = x.shape[0]
        assert (x == 5).count_nonzero().item() == pytest.approx(written, rel=0.01)
    x = torch.zeros(200, MANY // 100, device="cuda")
    x[:, 0] = 5
    assert x[:, 0].tolist() == [5] * 200
    assert x[150, 1:4].tolist() == [0, 0, 0]
    assert x.count_nonzero().item() == pytest.approx(200, rel=0.01)


@on_simulated_gpus()
def test_tensors_that_overlap_in_part_are_refused() -> None:
    x = torch.ones(4, 4, device="cuda")
    with pytest.raises(RuntimeError, match="single memory location"):
        x += x.t()
    x += x
    assert x[0, 0].item() == 2


@on_simulated_gpus()
def test_pairs_and_triples_of_labels_are_counted() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 100, (512,), device="cuda")
    true = labels.cpu()
    same = int((true[:, None] == true[None, :]).sum())
    # plimsoll computes values up to a budget of bytes, which this tensor uses up.
    spent = torch.randn(8 << 20, device="cuda")
    kept = []
    for _ in range(40):
        mask = labels[:, None] == labels[None, :]
        kept.append(mask)
        assert torch.where(mask)[0].numel() == same
    equal, other = mask.unsqueeze(2), ~mask.unsqueeze(1)
    apart = ~torch.eye(512, dtype=torch.bool, device="cuda")
    triples = equal & other & apart.unsqueeze(2)
    count = torch.where(triples)[0].numel()
    real = (true[:, None] == true[None, :]) & ~torch.eye(512, dtype=torch.bool)
    expected = int((real.sum(1) * (true[:, None] != true[None, :]).sum(1)).sum())
    assert count == pytest.approx(expected, rel=0.6)
    assert spent.numel() == 8 << 20


@on_simulated_gpus("--values", "none")
def test_many_whole_numbers_of_the_host_keep_their_bounds_and_ends() -> None:
    count = 1 << 20
    sources, targets = torch.randint(0, 50_000, (2, count)).cuda()
    # Each pair of a source and a target stands for an edge of a graph.
    assert sources[sources != targets].numel() > 0.99 * count
    mask = (torch.arange(count) % 4 != 0).to("cuda")
    assert torch.rand(count, device="cuda")[mask].numel() == pytest.approx(0.75 * count, rel=0.01)
    words = torch.randint(1, 30_000, (count,)).masked_fill(torch.arange(count) % 10 == 0, -100)
    kept = (words.cuda() != -100).nonzero()
    assert kept.numel() == pytest.approx(0.9 * count, rel=0.01)
    assert (torch.ones(count, dtype=torch.int64).cuda() == 1).all()


@on_simulated_gpus("--values", "none")
def test_a_tensor_of_the_host_without_contents_makes_others_of_its_kind() -> None:
    large = torch.empty(1 << 20, dtype=torch.bfloat16)
    for made in (large.new([1.5]), large.new_tensor([1.5]), large.new_tensor([1.5], device="cpu")):
        assert made.tolist() == [1.5]
    assert large.new_tensor([1.5]).dtype == torch.bfloat16
    assert large.new_tensor([1.5], device="cuda").is_cuda
