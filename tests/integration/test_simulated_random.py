"""Tests that random numbers on simulated GPUs follow the generators that programs seed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")


@on_simulated_gpus()
def test_a_seed_repeats_what_is_drawn() -> None:
    def draw(**options: Any) -> Any:
        return torch.rand(3, device="cuda", **options)

    torch.manual_seed(0)
    first, second = draw(), draw()
    torch.manual_seed(0)
    assert torch.equal(first, draw())
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(1)
    assert not torch.equal(first, draw())
    state = torch.cuda.get_rng_state()
    third = draw()
    torch.cuda.set_rng_state(state)
    assert torch.equal(third, draw())
    generator = torch.Generator("cuda").manual_seed(1)
    fourth = draw(generator=generator)
    generator.manual_seed(1)
    assert torch.equal(fourth, draw(generator=generator))


@on_simulated_gpus()
def test_a_checkpoint_drops_out_the_same_again() -> None:
    from torch.utils.checkpoint import checkpoint

    seen = []

    def forward(x: Any) -> Any:
        y = torch.nn.functional.dropout(x, 0.5)
        seen.append(y.detach().clone())
        return y * 2

    x = torch.ones(64, device="cuda", requires_grad=True)
    checkpoint(forward, x, use_reentrant=True).sum().backward()
    assert torch.equal(seen[0], seen[1])
    assert 0 < seen[0].sum().item() < 128


@on_simulated_gpus()
def test_the_hosts_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.nn.functional.dropout(torch.ones(8, device="cuda"))
    torch.rand(3, device="cuda")
    assert torch.equal(torch.rand(3), expected)


@on_simulated_gpus("--values", "none")
def test_tensors_without_contents_take_their_numbers_of_the_hosts_generator() -> None:
    pieces = [64_000] * 15 + [20_003]  # small enough to be computed
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        for fill in (torch.Tensor.uniform_, torch.Tensor.normal_):
            torch.manual_seed(0)
            for size in pieces:
                fill(torch.empty(size, dtype=kind))
            expected = torch.rand(3)
            torch.manual_seed(0)
            large = fill(torch.empty(sum(pieces), dtype=kind))
            assert not large.any()  # too large: its contents are not computed
            assert torch.equal(torch.rand(3), expected), (kind, fill)


@on_simulated_gpus("--values", "none")
def test_a_tensor_without_contents_takes_its_numbers_of_its_own_generator() -> None:
    own = torch.Generator().manual_seed(1)
    torch.empty(1 << 20).uniform_(generator=own)
    other = torch.Generator().manual_seed(1)
    for _ in range(8):
        torch.empty(1 << 17).uniform_(generator=other)
    assert torch.equal(torch.rand(3, generator=own), torch.rand(3, generator=other))
