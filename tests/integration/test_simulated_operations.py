"""What operations on simulated GPUs compute, accept and refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll.prediction import predict
from tests.simulated import assert_runs

pytest.importorskip("torch")

REFUSED = """
def refused(text, call):
    try:
        call()
    except (RuntimeError, IndexError) as error:
        assert text in str(error), error
        assert str(error).count(chr(10)) == 0, error
    else:
        raise AssertionError(f"accepted, not: {text}")
"""


def test_unknown_numbers_may_be_divided_by_and_taken_logarithms_of(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import math
images = torch.rand(4, 3, 256, 256, device="cuda")
mse = torch.nn.functional.mse_loss(images * 2, images)
assert 10 * math.log10(1 / mse.item()) == 0 and 1 / float(mse.cpu()) == 1
total = torch.zeros(1, device="cuda")
total += mse
assert math.log(total.item()) == 0
total[0] = images[0, 0, 0, 0]
assert 1 / total.item() == 1
assert images.argmax().item() == 0
window = torch.hann_window(400, device="cuda")
spectrum = torch.stft(torch.randn(2, 16000, device="cuda"), 400, window=window, return_complex=True)
assert torch.istft(spectrum, 400, window=window).shape == (2, 16000)
print(1 / torch.rand(1 << 20).mean().item())
""")  # fmt: skip


def test_an_unknown_mask_counts_as_many_elements_as_it_selects(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
x = torch.randn(8, 1000, 1000, device="cuda")
mask = x > 0
assert mask.sum().item() == torch.count_nonzero(mask).item() == x[mask].numel() == x.numel()
assert not torch.isnan(x).any().item()
""")  # fmt: skip


def test_a_scaler_steps_although_it_knows_no_gradients(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
layer = torch.nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.Adam(layer.parameters())
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", torch.half):
    loss = layer(torch.randn(8, 2048, device="cuda")).square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
assert len(optimizer.state) == 2 and scaler.get_scale() == 65536
""")  # fmt: skip


def test_an_expert_without_tokens_adds_nothing(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
for rows in (5, 4096):
    out = torch.zeros(rows, 64, device="cuda")
    index = torch.empty(0, dtype=torch.long, device="cuda")
    source = torch.empty(0, 64, device="cuda", requires_grad=True)
    assert out.index_add(0, index, source).shape == out.index_add_(0, index, source).shape
""")  # fmt: skip


def test_ctc_loss_takes_targets_and_lengths_from_anywhere(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import itertools
kinds = itertools.product(("cpu", "cuda"), (torch.int, torch.long))
for (device, kind), are_tensors in itertools.product(kinds, (False, True)):
    scores = torch.randn(50, 16, 20, device="cuda", requires_grad=True)
    targets = torch.randint(1, 20, (16, 30), dtype=kind, device=device)
    lengths = [50] * 16, [30] * 16
    if are_tensors:
        lengths = [torch.tensor(length, device=device) for length in lengths]
    loss = torch.nn.functional.ctc_loss(scores.log_softmax(2), targets, *lengths)
    loss.backward()
    assert scores.grad.shape == scores.shape
""")  # fmt: skip


def test_operations_that_pytorch_gives_no_shape_have_one(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
F = torch.nn.functional
a = torch.rand(2000, 3, device="cuda", requires_grad=True)
torch.distributions.Gamma(a, a).rsample().sum().backward()
torch.distributions.Dirichlet(a).rsample().sum().backward()
x = torch.zeros(4000, 4, device="cuda", requires_grad=True)
scale, zero = torch.ones(4, device="cuda"), torch.zeros(4, dtype=torch.int, device="cuda")
torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).sum().backward()
torch.fake_quantize_per_tensor_affine(x, scale[:1], zero[:1], 0, 255).sum().backward()
torch.fake_quantize_per_channel_affine(x, scale, zero, 1, 0, 255).sum().backward()
F.multi_margin_loss(x, torch.zeros(4000, dtype=torch.long, device="cuda")).backward()
F.multilabel_margin_loss(x, torch.zeros(4000, 4, dtype=torch.long, device="cuda")).backward()
found = torch.linalg.lstsq(x.detach(), torch.zeros(4000, 2, device="cuda"))
assert found.solution.shape == (4, 2) and found.residuals.shape == (2,)
found = torch.linalg.lstsq(torch.rand(7, 3000, 4).cuda(), torch.rand(7, 3000).cuda())
assert found.solution.shape == (7, 4) and found.residuals.shape == (7,)
""")  # fmt: skip


def test_types_that_a_gpu_does_not_multiply_are_refused(tmp_path: Path) -> None:
    assert_runs(tmp_path, REFUSED + """
F = torch.nn.functional
def zeros(*sizes, kind=torch.float):
    return torch.zeros(*sizes, dtype=kind, device="cuda")
half, long = torch.half, torch.long
square = zeros(4, 4)
refused("expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        lambda: square @ square.half())
refused("mat1 and mat2 must have the same dtype, but got Float and Half",
        lambda: F.linear(square, square.half(), zeros(4, kind=half)))
refused("self and mat2 must have the same dtype, but got Half and Float",
        lambda: F.linear(square, square, zeros(4, kind=half)))
refused("expected scalar type Float but found Half",
        lambda: zeros(2, 4, 4) @ zeros(2, 4, 4, kind=half))
refused('"addmm_cuda" not implemented for \\'Long\\'', lambda: square.long() @ square.long())
refused('"addmv_impl_cuda" not implemented', lambda: square.long() @ zeros(4, kind=long))
heads = zeros(1, 1, 4, 8)
refused("Expected query, key, and value to have the same dtype",
        lambda: F.scaled_dot_product_attention(heads, heads.half(), heads.half()))
refused("Expected attn_mask dtype to be bool or float",
        lambda: F.scaled_dot_product_attention(heads, heads, heads, attn_mask=square.long()))
with torch.autocast("cuda", half):
    assert (square @ square.half()).dtype == half
    assert F.scaled_dot_product_attention(heads, heads.half(), heads.half()).dtype == half
assert F.scaled_dot_product_attention(heads.half(), heads.half(), heads.half(),
                                      attn_mask=square.half()).dtype == half
assert (square.to(torch.complex64) @ square.to(torch.complex64)).is_complex()
""")  # fmt: skip


def test_types_that_a_gpu_does_not_index_or_draw_with_are_refused(tmp_path: Path) -> None:
    assert_runs(tmp_path, REFUSED + """
x = torch.zeros(4, device="cuda")
index = torch.zeros(2, dtype=torch.long, device="cuda")
refused("Index put requires the source and destination dtypes match, got Float for the "
        "destination and Half for the source.", lambda: x.index_put_((index,), x[:2].half()))
refused("masked_fill only supports boolean masks, but got dtype Float",
        lambda: x.masked_fill(x, 1.0))
refused("multinomial only supports floating-point dtypes for input, got: Long",
        lambda: (x.long() + 1).multinomial(1))
x[x > 0] = torch.tensor(1, dtype=torch.half)
x[index] = 2
x[[0, 1]] = x[:2]
assert x.gather(0, index.int()).shape == (2,)
""")  # fmt: skip


def test_sparse_tensors_are_refused_in_one_line(tmp_path: Path) -> None:
    assert_runs(tmp_path, REFUSED + """
said = "plimsoll cannot simulate the operation aten::"
weight = torch.zeros(10, 4, device="cuda", requires_grad=True)
index = torch.zeros(3, dtype=torch.long, device="cuda")
rows = torch.nn.functional.embedding(index, weight, sparse=True)
refused(said, lambda: weight.detach().to_sparse())
if torch.__version__ < "2.15":  # which makes sparse tensors without an operation of CUDA's
    refused(said, lambda: rows.sum().backward())
    places = torch.stack([index, index])
    refused(said, lambda: torch.sparse_coo_tensor(places, weight[:3, 0], (9, 9)))
""")  # fmt: skip


def test_the_kernels_that_may_serve_attention_are_told(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
def inputs(kind):
    heads = torch.zeros(1, 2, 64, 64, dtype=kind, device="cuda")
    return SDPAParams(heads, heads, heads, None, 0.0, True, False)
for kind in (torch.half, torch.float):
    assert can_use_flash_attention(inputs(kind)) == (kind == torch.half)
    assert can_use_efficient_attention(inputs(kind))
""")  # fmt: skip


def test_fused_layers_keep_the_workspaces_of_their_version(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True).cuda().eval()
x = torch.zeros(2, 9, 512, device="cuda")
def asked():
    return torch.cuda.memory_stats()["requested_bytes.all.current"]
before = asked()
with torch.inference_mode():
    layer(x)
version = tuple(int(part) for part in torch.__version__.split(".")[:2])
kept = 8519680 + (0 if version >= (2, 12) else 1 << 20)
assert asked() - before == (0 if version >= (2, 15) else kept)
""")  # fmt: skip


def test_products_take_the_workspace_of_their_version(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
x = torch.zeros(256, 256, device="cuda")
row = torch.zeros(256, device="cuda")
def taken(product):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = product()
    peak = torch.cuda.max_memory_allocated()
    return peak - before - x.nbytes, torch.cuda.memory_allocated() - before - x.nbytes
version = tuple(int(part) for part in torch.__version__.split(".")[:2])
kept = [taken(lambda: x @ x), taken(lambda: x @ x), taken(lambda: torch.addmm(row, x, x))]
lt = 0 if version >= (2, 12) else 1 << 20
if version >= (2, 15):  # each product has its own, for its duration
    assert kept == [(8519680, 0), (8519680, 0), (1 << 20, 0)], kept
else:
    assert kept == [(8519680, 8519680), (0, 0), (lt, lt)], kept
assert taken(lambda: x[:, :0] @ x[:0]) == (0, 0)
""")  # fmt: skip


def test_gradients_of_each_sample_are_predicted(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("""
import torch
from torch.func import functional_call, grad, vmap

layer = torch.nn.Linear(1024, 1024).cuda()
parameters = dict(layer.named_parameters())
def loss(parameters, x):
    return functional_call(layer, parameters, (x,)).square().mean()
x = torch.randn(8, 1, 1024, device="cuda")
gradients = vmap(grad(loss), (None, 0))(parameters, x)
assert gradients["weight"].shape == (8, 1024, 1024)
layer(x)
""")
    found = predict(path, gpu="T4")
    assert found.fits
    assert found.by_category["parameters"] == 4 * (1024 * 1024 + 1024)
