"""Random numbers on simulated GPUs follow the generators that programs seed."""

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
