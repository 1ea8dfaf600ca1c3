"""Tests on a real GPU the functions that reduce a training script's memory."""

from __future__ import annotations

from typing import Any

import pytest

import plimsoll

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _deterministic() -> Any:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A network of blocks with dropout. Recomputation must repeat dropout's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(512, 2048),
                torch.nn.GELU(),
                torch.nn.Dropout(0.1),
                torch.nn.Linear(2048, 512),
            )
            for _ in range(8)
        )

    def forward(self, x: Any) -> Any:
        """Takes `x` of shape [rows, 512]. Returns the mean of the squared outputs."""
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def trained(*names: str, parts: int = 1, dropout: bool = True) -> tuple[list[float], int]:
    """Trains for four steps. Returns the steps' losses, and their peak of allocated bytes.

    The peak does not count the bytes that were allocated before the first step.
    """
    torch.manual_seed(0)
    net = Net().cuda()
    net.train(dropout)
    if names:
        plimsoll.recompute(net, *names)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batch = torch.randn(4096, 512, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    losses = []
    for _ in range(4):
        total = 0.0
        for part in plimsoll.split_batch(parts, batch):
            loss = net(part) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, torch.cuda.max_memory_allocated() - before


def test_recomputed_blocks_give_the_same_losses_and_keep_their_inputs_alone() -> None:
    losses, peak = trained()
    same, less = trained("blocks.0-7")
    assert same == losses
    assert less < peak / 3


def test_a_batch_in_parts_takes_less_and_adds_up() -> None:
    losses, peak = trained(dropout=False)
    same, less = trained(parts=4, dropout=False)
    assert same == pytest.approx(losses, rel=1e-5)
    assert less < peak / 2


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_loss_in_chunks_keeps_one_gradient_of_the_logits(kind: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2048, 32_000, device="cuda", dtype=getattr(torch, kind))
    logits.requires_grad_(True)
    target = torch.randint(0, 32_000, (2048,), device="cuda")
    expected = torch.nn.functional.cross_entropy(logits.float(), target)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = plimsoll.cross_entropy(logits, target)
    (gradient,) = torch.autograd.grad(loss, logits)
    most = torch.cuda.max_memory_allocated() - before
    torch.testing.assert_close(loss, expected)
    assert gradient.dtype == logits.dtype
    torch.testing.assert_close(gradient, wanted, rtol=0.02, atol=1e-6)
    chunk = 2048 // 8 * 32_000 * 4
    assert most < logits.nbytes + 4 * chunk + MIB


def test_a_language_model_never_has_the_logits_of_all_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64_000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    ids = torch.randint(0, 64_000, (4, 1024), device="cuda")

    def step() -> tuple[float, Any, int]:
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        peak = torch.cuda.max_memory_allocated() - before
        return loss.item(), model.model.layers[0].mlp.up_proj.weight.grad.clone(), peak

    loss, gradient, peak = step()
    plimsoll.fuse_loss(model)
    same, alike, less = step()
    assert same == pytest.approx(loss, rel=1e-3)
    torch.testing.assert_close(alike, gradient, rtol=0.05, atol=1e-5)
    assert less < peak / 2
