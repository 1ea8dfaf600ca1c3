"""Tests operations on simulated GPUs: results, and inputs that they accept or refuse."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plimsoll.prediction.predict import predict
from tests.simulated import PROGRAMS, on_simulated_gpus

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def refused(text: str, call: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, IndexError), match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)


def torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


@on_simulated_gpus()
def test_unknown_numbers_may_be_divided_by_and_taken_logarithms_of() -> None:
    images = torch.rand(64, 3, 1024, 1024, device="cuda")
    mse = torch.nn.functional.mse_loss(images * 2, images)
    assert math.isfinite(10 * math.log10(1 / mse.item()))
    assert math.isfinite(1 / float(mse.cpu()))
    total = torch.zeros(1, device="cuda")
    total += mse
    assert math.isfinite(math.log(total.item()))
    total[0] = images[0, 0, 0, 0]
    assert math.isfinite(1 / total.item())
    assert 0 <= images.argmax().item() < images.numel()
    window = torch.hann_window(400, device="cuda")
    spectrum = torch.stft(
        torch.randn(2, 16000, device="cuda"), 400, window=window, return_complex=True
    )
    assert torch.istft(spectrum, 400, window=window).shape == (2, 16000)
    assert math.isfinite(1 / torch.rand(1 << 20).mean().item())


@on_simulated_gpus()
def test_an_unknown_mask_counts_as_many_elements_as_it_selects() -> None:
    x = torch.randn(100, 1000, 1000, device="cuda")
    mask = x > 0
    assert mask.sum().item() == torch.count_nonzero(mask).item() == x[mask].numel() == 50_000_000
    assert not torch.isnan(x).any().item()


@on_simulated_gpus()
def test_a_scaler_steps_although_it_knows_no_gradients() -> None:
    layer = torch.nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", torch.half):
        loss = layer(torch.randn(8, 2048, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert len(optimizer.state) == 2
    assert scaler.get_scale() == 65536


def test_a_prediction_says_that_a_scaler_skips_no_step(tmp_path: Path) -> None:
    program = tmp_path / "scaled.py"
    program.write_text(
        "import torch\n"
        "layer = torch.nn.Linear(2048, 2048).cuda()\n"
        "optimizer = torch.optim.Adam(layer.parameters())\n"
        "scaler = torch.amp.GradScaler('cuda')\n"
        "with torch.autocast('cuda', torch.half):\n"
        "    loss = layer(torch.randn(8, 2048, device='cuda')).square().mean()\n"
        "scaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\n"
    )
    text = " ".join(str(predict(program, gpu="T4")).split())
    assert "scaled.py:8 <module>: the scaler skips no step here" in text


@pytest.mark.long
@on_simulated_gpus("--unknown", "least")
def test_a_scaler_skips_its_first_steps_where_data_is_to_take_the_least() -> None:
    layer = torch.nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    scaler = torch.amp.GradScaler("cuda")
    seen = []
    for _ in range(5):
        with torch.autocast("cuda", torch.half):
            loss = layer(torch.randn(8, 2048, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((len(optimizer.state), scaler.get_scale()))
    assert seen == [(0, 32768), (0, 16384), (0, 8192), (2, 8192), (2, 8192)]


@on_simulated_gpus()
def test_an_expert_without_tokens_adds_nothing() -> None:
    for rows in (5, 4096):
        out = torch.zeros(rows, 64, device="cuda")
        index = torch.empty(0, dtype=torch.long, device="cuda")
        source = torch.empty(0, 64, device="cuda", requires_grad=True)
        assert out.index_add(0, index, source).shape == out.index_add_(0, index, source).shape


@on_simulated_gpus()
def test_ctc_loss_takes_targets_and_lengths_from_anywhere() -> None:
    kinds = itertools.product(("cpu", "cuda"), (torch.int, torch.long))
    for (device, kind), are_tensors in itertools.product(kinds, (False, True)):
        scores = torch.randn(50, 16, 20, device="cuda", requires_grad=True)
        targets = torch.randint(1, 20, (16, 30), dtype=kind, device=device)
        lengths: list[Any] = [[50] * 16, [30] * 16]
        if are_tensors:
            lengths = [torch.tensor(length, device=device) for length in lengths]
        loss = torch.nn.functional.ctc_loss(scores.log_softmax(2), targets, *lengths)
        loss.backward()
        assert scores.grad.shape == scores.shape


@on_simulated_gpus()
def test_operations_that_pytorch_gives_no_shape_have_one() -> None:
    volume = torch.rand(2, 3, 9, 9, 9, device="cuda", requires_grad=True)
    functional.fractional_max_pool3d(volume, 2, output_size=4).sum().backward()
    assert volume.grad.shape == volume.shape
    a = torch.rand(2000, 3, device="cuda", requires_grad=True)
    torch.distributions.Gamma(a, a).rsample().sum().backward()
    torch.distributions.Dirichlet(a).rsample().sum().backward()
    x = torch.zeros(4000, 4, device="cuda", requires_grad=True)
    scale, zero = torch.ones(4, device="cuda"), torch.zeros(4, dtype=torch.int, device="cuda")
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).sum().backward()
    torch.fake_quantize_per_tensor_affine(x, scale[:1], zero[:1], 0, 255).sum().backward()
    torch.fake_quantize_per_channel_affine(x, scale, zero, 1, 0, 255).sum().backward()
    functional.multi_margin_loss(x, torch.zeros(4000, dtype=torch.long, device="cuda")).backward()
    functional.multilabel_margin_loss(
        x, torch.zeros(4000, 4, dtype=torch.long, device="cuda")
    ).backward()
    found = torch.linalg.lstsq(x.detach(), torch.zeros(4000, 2, device="cuda"))
    assert found.solution.shape == (4, 2)
    assert found.residuals.shape == (2,)
    found = torch.linalg.lstsq(torch.rand(7, 3000, 4).cuda(), torch.rand(7, 3000).cuda())
    assert found.solution.shape == (7, 4)
    assert found.residuals.shape == (7,)


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def taken(call: Callable[[], object]) -> int:
    """Returns the most bytes that a call takes at once besides what was allocated before."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    peak = torch.cuda.max_memory_allocated()
    del kept
    return int(peak - before)


@on_simulated_gpus()
def test_cudnn_samples_a_grid_whose_corners_are_aligned() -> None:
    images = torch.rand(2, 3, 64, 64, device="cuda", requires_grad=True)
    grid = torch.rand(2, 32, 32, 2, device="cuda", requires_grad=True)
    sample = functools.partial(functional.grid_sample, images, align_corners=True)
    result = 2 * 3 * 32 * 32 * 4
    assert taken(lambda: sample(grid)) == result
    turned = torch.rand(2, 2, 32, 32, device="cuda").permute(0, 2, 3, 1)
    assert taken(lambda: sample(turned)) == result + 2 * 32 * 32 * 2 * 4
    sample(grid).sum().backward()
    assert images.grad.shape == images.shape
    assert grid.grad.shape == grid.shape
    whole = functional.affine_grid(torch.eye(2, 3)[None], [1, 1, 4, 4], align_corners=True)
    small = torch.arange(16.0, device="cuda").view(1, 1, 4, 4)
    assert torch.allclose(
        functional.grid_sample(small, whole.cuda(), align_corners=True).cpu(), small.cpu()
    )


@on_simulated_gpus(gpu="H200")
def test_cudnns_attention_takes_a_gradient_with_strides_of_its_own() -> None:
    heads = [torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.half) for _ in range(3)]
    for head in heads:
        head.requires_grad_()

    def backward(gradient: Any) -> int:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            result = functional.scaled_dot_product_attention(*heads)
        needed = taken(lambda: result.backward(gradient))
        for head in heads:
            head.grad = None
        return needed

    size = 2 * 4 * 512 * 64 * 2
    plain = backward(torch.ones(2, 4, 512, 64, device="cuda", dtype=torch.half))
    turned = torch.ones(2, 512, 4, 64, device="cuda", dtype=torch.half).transpose(1, 2)
    assert backward(turned) == plain
    assert backward(torch.ones(1, device="cuda", dtype=torch.half).expand(2, 4, 512, 64)) == (
        plain + size
    )


@on_simulated_gpus()
def test_depthwise_convolutions_of_volumes_take_no_workspace() -> None:
    video = torch.rand(2, 16, 8, 32, 32, device="cuda", requires_grad=True)
    weight = torch.rand(16, 1, 3, 3, 3, device="cuda", requires_grad=True)
    volume = 2 * 16 * 8 * 32 * 32 * 4
    convolve = functools.partial(functional.conv3d, weight=weight, padding=1, groups=16)
    assert taken(lambda: convolve(video)) == volume
    turned = torch.rand(16, 2, 8, 32, 32, device="cuda").transpose(0, 1)
    assert convolve(turned).is_contiguous()
    assert taken(lambda: convolve(turned)) == 2 * volume
    result = convolve(video)
    gradient = torch.ones_like(result)
    assert taken(lambda: result.backward(gradient)) == volume + rounded(16 * 27 * 4)
    assert video.grad.shape == video.shape


@on_simulated_gpus()
def test_without_cudnn_a_convolution_unfolds_one_sample_at_a_time() -> None:
    images = torch.rand(4, 8, 64, 64, device="cuda", requires_grad=True)
    weight = torch.rand(16, 8, 3, 3, device="cuda", requires_grad=True)
    torch.mm(images[0, 0], images[0, 0]).sum().backward()  # takes cuBLAS's workspaces
    images.grad = None
    with torch.backends.cudnn.flags(enabled=False):
        for dilation in 1, 2:
            side = 64 - 2 * dilation
            result, columns = rounded(4 * 16 * side**2 * 4), rounded(8 * 9 * side**2 * 4)
            call = functools.partial(functional.conv2d, images, weight, dilation=dilation)
            assert taken(call) == result + columns
            found = call()
            gradient = torch.ones_like(found)
            found.backward(gradient)
            assert images.grad.shape == images.shape
        volume = torch.rand(2, 4, 8, 8, 8, device="cuda", requires_grad=True)
        kernel = torch.rand(4, 4, 3, 3, 3, device="cuda", requires_grad=True)
        functional.conv3d(volume, kernel).sum().backward()
        assert kernel.grad.shape == kernel.shape


@on_simulated_gpus()
def test_types_that_a_gpu_does_not_multiply_are_refused() -> None:

    def zeros(*sizes: int, kind: Any = torch.float) -> Any:
        return torch.zeros(*sizes, dtype=kind, device="cuda")

    half, long = torch.half, torch.long
    attention = functional.scaled_dot_product_attention
    square = zeros(4, 4)
    refused(
        "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        lambda: square @ square.half(),
    )
    refused(
        "mat1 and mat2 must have the same dtype, but got Float and Half",
        lambda: functional.linear(square, square.half(), zeros(4, kind=half)),
    )
    refused(
        "self and mat2 must have the same dtype, but got Half and Float",
        lambda: functional.linear(square, square, zeros(4, kind=half)),
    )
    refused(
        "expected scalar type Float but found Half",
        lambda: zeros(2, 4, 4) @ zeros(2, 4, 4, kind=half),
    )
    refused("\"addmm_cuda\" not implemented for 'Long'", lambda: square.long() @ square.long())
    refused('"addmv_impl_cuda" not implemented', lambda: square.long() @ zeros(4, kind=long))
    scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD([square.bfloat16()])
    optimizer.param_groups[0]["params"][0].grad = square.bfloat16()
    scaler.scale(square.sum())
    refused("not implemented for 'BFloat16'", lambda: scaler.step(optimizer))
    heads = zeros(1, 1, 4, 8)
    refused(
        "Expected query, key, and value to have the same dtype",
        lambda: attention(heads, heads.half(), heads.half()),
    )
    refused(
        "Expected attn_mask dtype to be bool or float",
        lambda: attention(heads, heads, heads, attn_mask=square.long()),
    )
    with torch.autocast("cuda", half):
        assert (square @ square.half()).dtype == half
        assert attention(heads, heads.half(), heads.half()).dtype == half
    assert (
        attention(heads.half(), heads.half(), heads.half(), attn_mask=square.half()).dtype == half
    )
    assert (square.to(torch.complex64) @ square.to(torch.complex64)).is_complex()


@on_simulated_gpus()
def test_types_that_a_gpu_does_not_index_or_draw_with_are_refused() -> None:
    x = torch.zeros(4, device="cuda")
    index = torch.zeros(2, dtype=torch.long, device="cuda")
    refused(
        "Index put requires the source and destination dtypes match, got Float for the "
        "destination and Half for the source.",
        lambda: x.index_put_((index,), x[:2].half()),
    )
    refused(
        "masked_fill only supports boolean masks, but got dtype Float",
        lambda: x.masked_fill(x, 1.0),
    )
    refused(
        "multinomial only supports floating-point dtypes for input, got: Long",
        lambda: (x.long() + 1).multinomial(1),
    )
    x[x > 0] = torch.tensor(1, dtype=torch.half)
    x[index] = 2
    x[[0, 1]] = x[:2].clone()
    assert x.gather(0, index.int()).shape == (2,)


@on_simulated_gpus()
def test_the_kernels_that_may_serve_attention_are_told() -> None:
    from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

    def inputs(kind: Any) -> Any:
        heads = torch.zeros(1, 2, 64, 64, dtype=kind, device="cuda")
        return SDPAParams(heads, heads, heads, None, 0.0, True, False)

    for kind in (torch.half, torch.float):
        assert can_use_flash_attention(inputs(kind)) == (kind == torch.half)
        assert can_use_efficient_attention(inputs(kind))


@on_simulated_gpus()
def test_fused_layers_keep_the_workspaces_of_their_version() -> None:
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True).cuda().eval()
    x = torch.zeros(2, 9, 512, device="cuda")

    def asked() -> int:
        return int(torch.cuda.memory_stats()["requested_bytes.all.current"])

    before = asked()
    with torch.inference_mode():
        layer(x)
    kept = 8519680 + (0 if torch_version() >= (2, 12) else 1 << 20)
    assert asked() - before == (0 if torch_version() >= (2, 15) else kept)


@on_simulated_gpus()
def test_products_take_the_workspace_of_their_version() -> None:
    x = torch.zeros(256, 256, device="cuda")
    row = torch.zeros(256, device="cuda")

    def taken(product: Callable[[], Any]) -> tuple[int, int]:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _result = product()
        peak = torch.cuda.max_memory_allocated()
        return peak - before - x.nbytes, torch.cuda.memory_allocated() - before - x.nbytes

    kept = [taken(lambda: x @ x), taken(lambda: x @ x), taken(lambda: torch.addmm(row, x, x))]
    lt = 0 if torch_version() >= (2, 12) else 1 << 20
    if torch_version() >= (2, 15):  # since 2.15 a product has a workspace only while it runs
        assert kept == [(8519680, 0), (8519680, 0), (1 << 20, 0)], kept
    else:
        assert kept == [(8519680, 8519680), (0, 0), (lt, lt)], kept
    assert taken(lambda: x[:, :0] @ x[:0]) == (0, 0)


@on_simulated_gpus()
def test_products_of_halves_are_summed_into_floats() -> None:
    left, right = (torch.ones(shape, device="cuda").bfloat16() for shape in ((8, 16), (16, 4)))
    out, row = torch.zeros(8, 4, device="cuda"), torch.ones(4, device="cuda")
    kinds: dict[str, Any] = {"out_dtype": torch.float32}
    products: tuple[Callable[[], Any], ...] = (
        lambda: torch.mm(left, right, **kinds),
        lambda: torch.mm(left, right, **kinds, out=out),
        lambda: torch.addmm(out, left, right, **kinds, out=out),
        lambda: torch.addmm(row, left, right, **kinds),
        lambda: torch.bmm(left[None], right[None], **kinds)[0],
        lambda: torch.baddbmm(out[None], left[None], right[None], **kinds)[0],
    )
    for product in products:
        found = product()
        assert found.shape == (8, 4)
        assert found.dtype == torch.float32
    with pytest.raises(RuntimeError, match="out_dtype must be"):
        torch.mm(left, right, out_dtype=torch.float64)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(left, left, **kinds)


@pytest.mark.long
def test_gradients_of_each_sample_are_predicted() -> None:
    found = predict(PROGRAMS / "simulated" / "gradients_of_each_sample.py", gpu="T4")
    assert found.fits
    assert found.by_category["parameters"] == 4 * (1024 * 1024 + 1024)
