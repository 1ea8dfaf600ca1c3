"""Tests nested tensors, both jagged and strided ones, on simulated GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LENGTHS = [100, 37, 512, 256, 9, 300, 511, 77]
ROWS = sum(LENGTHS)


def nested(width: int, dtype: Any, **kwargs: Any) -> Any:
    parts = [torch.randn(length, width) for length in LENGTHS]
    return torch.nested.nested_tensor(parts, device="cuda", dtype=dtype, **kwargs)


@on_simulated_gpus()
def test_jagged_attention_holds_no_padding() -> None:
    joint = torch.nn.Linear(512, 1536, device="cuda", dtype=torch.bfloat16)
    x = nested(512, torch.bfloat16, layout=torch.jagged, requires_grad=True)

    def attend() -> Any:
        query, key, value = (
            part.unflatten(-1, (8, 64)).transpose(1, 2) for part in joint(x).chunk(3, dim=-1)
        )
        return functional.scaled_dot_product_attention(query, key, value)

    attend()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        attended = attend()
    assert attended.transpose(1, 2).flatten(-2).values().shape == (ROWS, 512)
    # Measured on an H200 with PyTorch 2.11.
    assert torch.cuda.max_memory_allocated() - before == 7_440_896
    del attended
    attend().transpose(1, 2).flatten(-2).values().sum().backward()
    assert x.grad.values().shape == (ROWS, 512)


@on_simulated_gpus()
def test_jagged_tensors_are_padded_and_back() -> None:
    x = nested(64, torch.float32, layout=torch.jagged, requires_grad=True)
    padded = x.to_padded_tensor(0.0)
    assert padded.shape == (8, 512, 64)
    padded.sum().backward()
    assert x.grad.values().shape == (ROWS, 64)
    assert torch.softmax(x.detach(), dim=1).values().shape == (ROWS, 64)


@on_simulated_gpus()
def test_strided_nested_tensors_are_composed_of_their_buffer() -> None:
    x = nested(512, torch.float32, requires_grad=True)
    before = torch.cuda.memory_allocated()
    projected = functional.linear(x, torch.randn(256, 512, device="cuda"))
    assert projected.values().numel() == ROWS * 256
    padded = torch.nested.to_padded_tensor(projected, 0.0)
    assert padded.shape == (8, 512, 256)
    padded.sum().backward()
    assert x.grad.values().numel() == ROWS * 512
    assert torch.cuda.memory_allocated() > before


@on_simulated_gpus()
def test_an_encoder_skips_padding_in_evaluation() -> None:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).cuda().eval()
    x = torch.randn(16, 128, 256, device="cuda")
    lengths = torch.arange(16, device="cuda") * 4 + 64
    padding = torch.arange(128, device="cuda")[None] >= lengths[:, None]
    peaks = []
    with torch.inference_mode():
        encoder(x)
        for mask in (None, padding):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            assert encoder(x, src_key_padding_mask=mask).shape == x.shape
            peaks.append(torch.cuda.max_memory_allocated() - before)
    skipped = 1 - float(lengths.sum()) / x[..., 0].numel()
    assert peaks[1] < peaks[0] * (1 - skipped / 2)


@on_simulated_gpus()
def test_what_is_not_modelled_is_refused_in_one_line() -> None:
    x = nested(64, torch.float32)
    with pytest.raises(NotImplementedError, match="nested tensors") as caught:
        torch.bmm(x, x.transpose(1, 2))
    assert "\n" not in str(caught.value)
