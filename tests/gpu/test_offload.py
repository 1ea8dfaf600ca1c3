"""Tests on a real GPU that offloaded memory returns unchanged, to the bit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import plimsoll

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
STEPS = 4
Loss = tuple[Any, Any]  # the model, and a function that returns a step's loss


@pytest.fixture(autouse=True)
def _exact() -> Any:
    """Turns off fused attention, whose backward pass adds numbers in a varying order."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.backends.cudnn.deterministic = before


def inputs(step: int, *shape: int) -> Any:
    generator = torch.Generator("cuda").manual_seed(step)
    return torch.randn(*shape, device="cuda", generator=generator)


class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mixed = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        mixed = self.mixed(self.norm(x)).view(batch, length, 3, 8, width // 8)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def transformer() -> Loss:
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(*(Attention(256) for _ in range(4)))
    model = torch.nn.ModuleDict({"blocks": blocks, "head": torch.nn.Linear(256, 4096)}).cuda()

    def loss(step: int) -> Any:
        logits = model["head"](model["blocks"](inputs(step, 8, 512, 256)))
        targets = torch.arange(8 * 512, device="cuda")
        return torch.nn.functional.cross_entropy(logits.view(-1, 4096), targets)

    return model, loss


def in_half_precision() -> Loss:
    model, loss = transformer()

    def half(step: int) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return loss(step)

    return model, half


def checkpointed() -> Loss:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Attention(256) for _ in range(6))).cuda()

    def loss(step: int) -> Any:
        x = inputs(step, 8, 512, 256).requires_grad_()
        for index, block in enumerate(model):
            if index % 3 == 0:
                x = checkpoint(block, x, use_reentrant=False)
            elif index % 3 == 1:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        return x.square().mean()

    return model, loss


def convolutions() -> Loss:
    torch.manual_seed(0)
    layers: list[Any] = []
    for channels in (3, 32, 32, 32):
        layers += [
            torch.nn.Conv2d(channels, 32, 3, padding=1),
            torch.nn.BatchNorm2d(32),
            torch.nn.ReLU(inplace=True),
            torch.nn.Dropout(0.1),
        ]
    model = torch.nn.Sequential(*layers).cuda()

    def loss(step: int) -> Any:
        torch.manual_seed(step)
        return model(inputs(step, 16, 3, 64, 64)).square().mean()

    return model, loss


def train(make: Callable[[], Loss], block: Any, *, twice: bool = False) -> list[Any]:
    """Returns the losses and gradients of all steps."""
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for step in range(STEPS):
        with block:
            loss = loss_of(step)
        if twice:
            loss.backward(retain_graph=True)
        loss.backward()
        found.append(loss.detach().clone())
        found += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return found


def assert_the_same(
    make: Callable[[], Loss], budget: int, *, twice: bool = False
) -> plimsoll.offload:
    wanted = train(make, contextlib.nullcontext(), twice=twice)
    offload = plimsoll.offload(budget)
    found = train(make, offload, twice=twice)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    return offload


@pytest.mark.parametrize("make", [transformer, in_half_precision, checkpointed, convolutions])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("part", [0.01, 0.7])
def test_losses_and_gradients_are_the_same_to_the_bit(
    make: Callable[[], Loss], twice: bool, part: float
) -> None:
    torch.cuda.reset_peak_memory_stats()
    train(make, contextlib.nullcontext(), twice=twice)
    budget = int(torch.cuda.max_memory_allocated() * part)
    offload = assert_the_same(make, budget, twice=twice)
    if part < 0.1:
        assert offload.statistics().out_bytes > 0


def test_nothing_moves_where_there_is_room() -> None:
    offload = assert_the_same(transformer, 8192 * MIB)
    assert offload.statistics().out_bytes == 0
    assert offload.statistics().waited_seconds == 0


def test_the_peak_stays_within_the_budget() -> None:
    def deep() -> Loss:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(Attention(512) for _ in range(12))).cuda()
        return model, lambda step: model(inputs(step, 8, 1024, 512)).square().mean()

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train(deep, contextlib.nullcontext())
    plain = torch.cuda.max_memory_allocated()
    budget = plain // 2
    torch.cuda.reset_peak_memory_stats()
    train(deep, plimsoll.offload(budget))
    assert torch.cuda.max_memory_allocated() <= budget


def test_what_reads_only_a_shape_takes_no_memory() -> None:
    def step() -> tuple[int, Any]:
        before = torch.cuda.memory_allocated()
        x = inputs(0, 4096, 8192).bfloat16().requires_grad_()
        targets = torch.arange(4096, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        torch.nn.functional.nll_loss(torch.log_softmax(x, -1).float(), targets).backward()
        return torch.cuda.max_memory_allocated() - before, x.grad

    plain, wanted = step()
    with plimsoll.offload("8GiB"):
        for _ in range(3):
            peak, found = step()
            assert torch.equal(found, wanted)
            del found
    assert peak <= plain - (60 << 20)


def test_it_takes_turns_with_other_streams() -> None:
    """Trains on a side stream."""
    wanted = train(transformer, contextlib.nullcontext())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = train(transformer, plimsoll.offload(64 * MIB))
    torch.cuda.current_stream().wait_stream(side)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_second_derivatives() -> None:
    x = torch.randn(1024, 1024, device="cuda", requires_grad=True)

    def second() -> Any:
        y = (x.tanh() * x.exp()).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (again,) = torch.autograd.grad(first.square().sum(), x)
        return again

    wanted = second()
    for _ in range(3):
        with plimsoll.offload(4 * MIB):
            assert torch.equal(second(), wanted)


def test_a_budget_beyond_the_card_is_an_error() -> None:
    with pytest.raises(plimsoll.InputError, match="more than the GPU has"):
        plimsoll.offload("9000GiB").__enter__()
