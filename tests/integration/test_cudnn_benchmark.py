"""Tests cudnn.benchmark: a first call tries cuDNN's plans, and later calls use the fastest plan."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")
MIB = 1 << 20


def train() -> tuple[int, int]:
    """Trains a small network. Returns the peaks in MiB, allocated and reserved."""
    torch.manual_seed(0)
    layers: list[Any] = [torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(64, 128, 3, 2, 1), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(128, 256, 3, 1, 1), torch.nn.ReLU()]
    layers += [torch.nn.ConvTranspose2d(256, 64, 4, 2, 1), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Conv2d(64, 3, 3, 1, 1)).cuda()
    torch.cuda.reset_peak_memory_stats()
    net(torch.randn(32, 3, 224, 224, device="cuda")).square().mean().backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() // MIB, torch.cuda.max_memory_reserved() // MIB


@on_simulated_gpus(gpu="H100")
def test_the_first_step_takes_the_searchs_workspace_as_on_an_h100() -> None:
    torch.backends.cudnn.benchmark = True
    assert train() == (1472, 1742)
    assert train() == (669, 1132)


@on_simulated_gpus(gpu="H100")
def test_a_plan_that_was_chosen_before_stays() -> None:
    first = train()
    assert first == (669, 1214)
    torch.backends.cudnn.benchmark = True
    assert train()[0] == first[0]


@on_simulated_gpus(gpu="T4:2GiB")
def test_a_search_takes_no_more_than_the_card_has() -> None:
    torch.backends.cudnn.benchmark = True
    image = torch.randn(16, 64, 128, 128, device="cuda")
    torch.nn.Conv2d(64, 64, 3, padding=1).cuda()(image)
    assert torch.cuda.max_memory_reserved() <= 2 << 30
