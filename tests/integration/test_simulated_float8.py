"""Tests 8-bit numbers on simulated GPUs: float8 products, integers, quantization in training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")


@on_simulated_gpus()
def test_float8_products_take_their_result_and_the_workspace() -> None:
    one = torch.ones((), device="cuda")
    left = torch.randn(1024, 1024, device="cuda").to(torch.float8_e4m3fn)
    right = torch.randn(1024, 1024, device="cuda").to(torch.float8_e4m3fn)

    def product() -> Any:
        return torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16)

    product()
    before = torch.cuda.memory_allocated()
    made = product()
    assert torch.cuda.memory_allocated() - before == 1024 * 1024 * 2
    assert made.dtype == torch.bfloat16
    assert left.element_size() == 1


@on_simulated_gpus()
def test_training_with_fake_quantization_keeps_a_mask() -> None:
    x = torch.randn(1000, 1000, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    made = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    held = torch.cuda.memory_allocated() - before
    assert held == pytest.approx(5_000_000, abs=1024)
    made.sum().backward()
    assert x.grad.shape == x.shape


@on_simulated_gpus()
def test_quantized_tensors_are_refused_in_one_line() -> None:
    x = torch.randn(8, 8, device="cuda")
    with pytest.raises(NotImplementedError, match="plimsoll cannot simulate") as caught:
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    assert "\n" not in str(caught.value)
