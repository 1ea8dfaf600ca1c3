"""Tests that flexible attention on simulated GPUs is fused when it is compiled."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from plimsoll.prediction.predict import predict
from tests.simulated import PROGRAMS, on_simulated_gpus

torch = pytest.importorskip("torch")

MIB = 1 << 20
FLEXIBLE = PROGRAMS / "prediction" / "flexible_attention.py"


@pytest.mark.long
@on_simulated_gpus()
def test_compiled_flexible_attention_holds_no_scores() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    attend = torch.compile(flex_attention)
    shape = (2, 8, 8192, 64)
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    before = torch.cuda.memory_allocated()
    out = attend(q, k, v)
    rows = 2 * 8 * 8192 * 4
    # The compiled graph keeps the mask's tables. Without Triton, plimsoll does not compile. It
    # estimates the memory by a rule, and keeps no tables.
    mask = 4 * 512 if find_spec("triton") else 0
    assert torch.cuda.memory_allocated() - before == out.nbytes + rows + mask
    torch.cuda.reset_peak_memory_stats()
    out.sum().backward()
    # At the peak there are the output, its gradient as a whole tensor, the gradients of q, k and v,
    # and two numbers per row.
    assert torch.cuda.max_memory_allocated() - before == 5 * out.nbytes + 2 * rows + 1024 + mask
    assert q.grad.shape == shape
    grouped, logarithms = attend(q, k[:, :2], v[:, :2], enable_gqa=True, return_lse=True)
    assert grouped.shape == shape
    assert logarithms.shape == shape[:-1]


@pytest.mark.long
def test_attention_that_is_not_compiled_is_told_with_its_bytes() -> None:
    found = predict(FLEXIBLE)
    (said,) = [one.what for one in found.assumptions if one.operation == "flex_attention"]
    assert "64.00 MiB each" in said
