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
    (
        "F.interpolate(image.long(), scale_factor=2, mode='nearest-exact')",
        NotImplementedError,
        "nearest2d",
    ),
    ("F.max_pool2d(image.long(), 2)", NotImplementedError, "max_pool2d"),
    ("F.conv2d(image.long(), image.long())", RuntimeError, "Long"),
    ("F.grid_sample(image, torch.zeros(1, 2, 2, 2, device=d).half())", RuntimeError, "Half"),
    ("torch.linalg.eigh(torch.eye(3, device=d).half())", NotImplementedError, "Half"),
    ("torch.fft.fft(torch.ones(6, device=d).half())", RuntimeError, "powers of two"),
    ("torch.fft.irfft(torch.ones(5, device=d).chalf(), n=6)", RuntimeError, "powers of two"),
    ("torch._foreach_add([x], [x.cpu()])", RuntimeError, "same device"),
    ("torch._foreach_add([x.cpu()], [x])", RuntimeError, "same device"),
    ("torch._foreach_add_([torch.tensor(1.0)], [x])", RuntimeError, "same device"),
    ("torch._foreach_add_([torch.tensor(1.0)], [x.sum()])", RuntimeError, "cuda:0 and cpu!"),
    ("torch.tensor(1.0).add_(x.sum()).item()", RuntimeError, "cuda:0 and cpu!"),
    ("torch.add(x, 1, out=torch.tensor(1.0))", RuntimeError, "cuda:0 and cpu!"),
    (
        "torch.ops.aten._foreach_add.Tensor([x], torch.tensor(1.0))",
        RuntimeError,
        "scalar tensor expected to be on cuda:0 but is on cpu",
    ),
    ("torch._foreach_mul_([x.cpu()], x.sum())", RuntimeError, "is expected to be on cpu"),
    ("torch._foreach_mul([x], x)", RuntimeError, "0 dim but it has 1 dimensions and 2"),
    ("torch._foreach_addcmul([x], [x], [x], x[:1])", RuntimeError, "scalars to be on CPU"),
    ("torch._foreach_add_([x, x], [x])", RuntimeError, "same number of tensors, got 2 and 1"),
    ("torch._foreach_add_([x, x], [1.0])", RuntimeError, "same number of elements"),
    ("torch.bitwise_and(x, i, out=i)", NotImplementedError, "bitwise_and_cuda"),
    ("x[:0] & x[:0]", NotImplementedError, "bitwise_and_cuda"),
    ("x[:0].gcd(x[:0])", NotImplementedError, "gcd_cuda"),
    ("torch.bincount(x[:0])", NotImplementedError, "bincount_cuda"),
    ("i[:0].index_select(0, i.view(2, 1))", RuntimeError, "vector"),
    ("torch.cdist(X.long()[:0], X.long())", RuntimeError, "floating-point"),
    (
        "F.interpolate(image.long()[:0], scale_factor=2, mode='bilinear')",
        NotImplementedError,
        "bilinear2d",
    ),
    ("F.interpolate(image.long(), size=4, mode='bicubic')", NotImplementedError, "bicubic2d"),
    ("F.binary_cross_entropy(X[:0], X[:0].long())", RuntimeError, "Found dtype Long"),
    ("F.layer_norm(X.half()[:, :0], (0,), torch.ones(0, device=d))", RuntimeError, "Float"),
    ("F.layer_norm(x, (1, 2), torch.ones(1, 2, device=d))", RuntimeError, "normalized_shape"),
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
    "torch.tensor(1.0).fill_(x.sum())",
    "x.sum().fill_(torch.tensor(1.0))",
    "torch._foreach_copy_([x], [x.cpu()])",
    "torch._foreach_mul_([x.cpu(), x], 2.0)",
    "torch.bitwise_and(i, i, out=torch.empty(0, device=d))",
    "torch.bitwise_or(i, i, out=x)",
    "torch.bitwise_xor(i, i, out=x)",
    "torch.gcd(i, i, out=x)",
    "torch.lcm(i, i, out=x)",
    "torch.fft.irfft(torch.ones(5, device=d).chalf(), n=8, out=torch.empty(8, device=d).half())",
    "torch.fft.irfftn(torch.ones(4, 5, device=d).chalf(), out=torch.empty(4, 8, device=d).half())",
    "torch._foreach_addcmul([torch.tensor(1.0)], [x], [x])",
)
# Calls for which PyTorch returns before it looks for a kernel.
EARLY = (
    "X.index_select(0, x[:0])",
    "X[:, :0].index_select(0, x)",
    "i[:0].view(0, 2).softmax(1)",
    "torch.softmax(i[:0], 0, out=i.clone())",
    "i[:0].log_softmax(0)",
    "torch.cdist(X.half()[:0], X.half())",
    "torch.cdist(X.half(), X.half()[:0])",
    "F.layer_norm(X.half()[:0], (4,), torch.ones(4, device=d))",
    "F.group_norm(X.half()[:0], 2, torch.ones(4, device=d))",
    "F.cross_entropy(X.half()[:0], i[:0], weight=torch.ones(4, device=d))",
    "F.multi_margin_loss(X.long()[:0], i[:0])",
    "F.multilabel_margin_loss(X.long()[:0], X.long()[:0])",
    "F.grid_sample(image[:0], torch.zeros(0, 2, 2, 2, device=d).half())",
    "F.avg_pool2d(image.long()[:0], 2)",
    "F.max_pool2d(image.long()[:0], 2)",
    "F.max_pool3d(image.long().unsqueeze(2)[:0], 1)",
    "F.adaptive_avg_pool2d(image.long()[:0], 2)",
    "F.adaptive_max_pool2d(image.long()[:0], 2)",
    "F.interpolate(image.long()[:0], scale_factor=2)",
    "F.interpolate(image.long()[:0], scale_factor=2, mode='nearest-exact')",
    "F.interpolate(image.long(), size=4)",
    "F.interpolate(image.byte(), size=4, mode='bilinear')",
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
    for expression in TAKEN + EARLY:
        eval(expression, _names())


# Calls for lists whose second element is on the host. PyTorch computes each element by itself.
BY_ELEMENT = (
    ("torch._foreach_mul([x, h], [x, h])", [[0.0, 1.0], 9.0]),
    ("torch._foreach_mul([x, h], 2.0)", [[0.0, 2.0], 6.0]),
    ("torch._foreach_mul([x, h], [2.0, 3.0])", [[0.0, 2.0], 9.0]),
    ("torch._foreach_mul([x, h], torch.tensor(2.0))", [[0.0, 2.0], 6.0]),
    ("torch._foreach_addcdiv([x, h], [x, h], [x + 1, h], [2.0, 3.0])", [[0.0, 2.0], 6.0]),
    ("torch._foreach_addcmul([x, h], [x, h], [x, h], torch.ones(2))", [[0.0, 2.0], 12.0]),
    ("torch._foreach_lerp([x, h], [x, h], 0.5)", [[0.0, 1.0], 3.0]),
    ("torch._foreach_norm([x, h])", [1.0, 3.0]),
    ("torch._foreach_max([x, h])", [1.0, 3.0]),
    ("torch._foreach_pow([x, h], 2)", [[0.0, 1.0], 9.0]),
    ("torch._foreach_sqrt([x, h * h])", [[0.0, 1.0], 3.0]),
)


@on_simulated_gpus()
def test_what_is_computed_of_an_element_on_the_host_is_on_the_host() -> None:
    for expression, values in BY_ELEMENT:
        found = eval(expression, {**_names(), "h": torch.tensor(3.0)})
        assert [each.device.type for each in found] == ["cuda", "cpu"], expression
        assert [each.tolist() for each in found] == values, expression
    names = {**_names(), "h": torch.tensor(3.0)}
    assert eval("torch._foreach_mul([x, h], x.sum())[1].device.type", names) == "cuda"


@on_simulated_gpus()
def test_a_list_with_an_element_on_the_host_is_written_and_differentiated() -> None:
    device, host = torch.ones(2, device="cuda", requires_grad=True), torch.tensor(2.0)
    host.requires_grad_()
    products = torch._foreach_mul([device, host], [torch.full_like(device, 3.0), host.detach()])
    torch.autograd.backward([products[0].sum(), products[1]])
    assert (device.grad.tolist(), host.grad.item()) == ([3.0, 3.0], 2.0)
    with torch.no_grad():
        torch._foreach_add_([device, host], 1.0)
    assert (device.tolist(), host.item()) == ([2.0, 2.0], 3.0)


@on_simulated_gpus()
def test_lists_of_different_types_take_memory_by_element() -> None:
    """Norms of such lists are reductions of each tensor, which keep partial results."""
    lists = [torch.ones(1 << 22, device="cuda"), torch.ones(1 << 22, device="cuda").half()]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    norms = torch._foreach_norm(lists)
    most = torch.cuda.max_memory_allocated() - before
    alone = [torch.linalg.vector_norm(each) for each in lists]
    assert [each.dtype for each in norms] == [each.dtype for each in alone]
    assert most > 2 * 512


@on_simulated_gpus()
def test_one_kernel_clears_a_list_of_integers() -> None:
    """By element it would take as long as 100 kernels and their launches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = {}
    for dtype in (torch.float32, torch.int32):
        tensors = [torch.ones(64, device="cuda", dtype=dtype) for _ in range(100)]
        torch.cuda.synchronize()
        begin.record()
        torch._foreach_zero_(tensors)
        end.record()
        torch.cuda.synchronize()
        seconds[dtype] = begin.elapsed_time(end)
    assert seconds[torch.int32] == pytest.approx(seconds[torch.float32], rel=0.5)


@on_simulated_gpus("--gpus", "2")
def test_a_number_on_the_host_goes_with_a_list_on_any_device() -> None:
    lists = (
        [torch.tensor(1.0)] * 2,
        [torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")],
    )
    first, second = torch._foreach_add(*lists)
    assert (first.device.index, first.tolist()) == (0, [2.0] * 3)
    assert (second.device.index, second.tolist()) == (1, [2.0] * 3)


@on_simulated_gpus()
def test_autocast_gives_a_normalization_one_type() -> None:
    layer = torch.nn.LayerNorm(4).cuda().half()
    with torch.autocast("cuda"):
        assert layer(torch.ones(2, 4, device="cuda")).dtype == torch.float32
