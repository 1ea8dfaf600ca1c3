"""Tests that simulated kernels take the element types that PyTorch's CUDA kernels take."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

REFUSED = (
    ("F.embedding(x, X)", RuntimeError, "scalar types: Long, Int"),
    ("X.index_select(0, x)", RuntimeError, "Expected dtype int32 or int64"),
    ("X.index_select(0, i.view(2, 1))", RuntimeError, "vector"),
    ("X.index_fill(0, i.int(), 0.0)", IndexError, "Expected dtype int64"),
    ("torch.bincount(x)", NotImplementedError, "bincount_cuda"),
    ("torch.bincount(i.view(2, 1))", RuntimeError, "1-d non-negative"),
    ("torch.bincount(i, weights=torch.ones(3, device=d))", RuntimeError, "same length"),
    ("torch.multinomial(x + 1, 3)", RuntimeError, "without replacement"),
    ("F.cross_entropy(X, i, weight=torch.ones(4, device=d).half())", RuntimeError, "found Half"),
    ("F.binary_cross_entropy(X.sigmoid(), X.long())", RuntimeError, "Found dtype Long"),
    ("F.layer_norm(X.half(), (4,), torch.ones(4, device=d))", RuntimeError, "but found Float"),
    ("F.group_norm(X.half(), 2, torch.ones(4, device=d))", RuntimeError, "but found Float"),
    ("i.softmax(0)", NotImplementedError, "host_softmax"),
    ("(x > 0) & x", NotImplementedError, "bitwise_and_cuda"),
    ("F.interpolate(image.long(), scale_factor=2)", NotImplementedError, "nearest2d"),
    ("F.interpolate(image.byte(), scale_factor=2, mode='bilinear')", NotImplementedError, "Byte"),
    ("F.interpolate(image.long(), scale_factor=2, mode='nearest-exact')", NotImplementedError, ""),
    ("F.max_pool2d(image.long(), 2)", NotImplementedError, "max_pool2d"),
    ("F.conv2d(image.long(), image.long())", RuntimeError, "Long"),
    ("F.grid_sample(image, torch.zeros(1, 2, 2, 2, device=d).half())", RuntimeError, "Half"),
    ("torch.linalg.eigh(torch.eye(3, device=d).half())", NotImplementedError, "Half"),
    ("torch.fft.fft(torch.ones(6, device=d).half())", RuntimeError, "powers of two"),
    ("torch._foreach_add([x], [x.cpu()])", RuntimeError, "same device"),
)
TAKEN = (
    "F.embedding(i.int(), X)",
    "X.index_select(0, i.int())",
    "torch.bincount(i.byte(), weights=x)",
    "torch.multinomial(x + 1, 2)",
    "torch.multinomial(x + 1, 3, replacement=True)",
    "F.cross_entropy(X.half(), i, weight=torch.ones(4, device=d).half())",
    "F.layer_norm(X.half(), (4,), torch.ones(4, device=d).half())",
    "F.layer_norm(X, (4,))",
    "F.rms_norm(X.half(), (4,), torch.ones(4, device=d))",
    "F.batch_norm(X.half(), torch.zeros(4, device=d), torch.ones(4, device=d), training=True)",
    "i.softmax(0, dtype=torch.float32)",
    "(x > 0) & i",
    "(x > 0) | True",
    "F.interpolate(image.byte(), scale_factor=2)",
    "F.max_pool2d(image.bfloat16(), 2)",
    "(x > 0).cumsum(0)",
    "torch.fft.rfft(torch.ones(8, device=d).half())",
    "torch.fft.irfft(torch.ones(5, device=d, dtype=torch.complex64))",
    "torch._foreach_add([x], [torch.tensor(1.0)])",
    "torch._foreach_copy_([x], [x.cpu()])",
    "torch._foreach_mul_([x.cpu(), x], 2.0)",
)


def _names() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "d": "cuda"}
    names |= {"x": torch.arange(2.0, device="cuda"), "i": torch.arange(2, device="cuda")}
    return names | {"X": torch.ones(2, 4, device="cuda"), "image": torch.ones(1, 1, 4, 4).cuda()}


@on_simulated_gpus()
def test_a_type_for_which_there_is_no_kernel_is_refused() -> None:
    for expression, error, text in REFUSED:
        with pytest.raises(error, match=text):
            eval(expression, _names())


@on_simulated_gpus()
def test_a_type_for_which_there_is_a_kernel_is_taken() -> None:
    for expression in TAKEN:
        eval(expression, _names())


@on_simulated_gpus()
def test_autocast_gives_a_normalization_one_type() -> None:
    layer = torch.nn.LayerNorm(4).cuda().half()
    with torch.autocast("cuda"):
        assert layer(torch.ones(2, 4, device="cuda")).dtype == torch.float32
