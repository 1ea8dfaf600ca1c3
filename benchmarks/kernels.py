"""Times single operations on a GPU over many sizes. A simulated GPU's clock is fitted to the times.

    python benchmarks/kernels.py measure [--only mm,conv] [--results FOLDER]
    python benchmarks/kernels.py compare [--only mm,conv] [--worst 20]

`measure` needs a GPU, and writes FOLDER/kernels.csv: a row for each case, with the time on the GPU
and the time of the call on the host, in nanoseconds. The GPU sleeps while the host queues a case
many times, so the time on the GPU does not include the host's. `compare` runs the same cases on a
simulated GPU and prints, for each operation, how far the times differ from that file.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(__file__).parent / "results"
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SHORT = {FP32: "fp32", BF16: "bf16", FP16: "fp16", torch.int64: "i64"}
aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """An operation on tensors of certain shapes.

    `make` allocates the tensors, and returns a function that runs the operation on them.
    """

    operation: str
    what: str
    make: Callable[[], Callable[[], object]]

    @property
    def name(self) -> str:
        """Returns the operation with its operands."""
        return f"{self.operation} {self.what}"


def tensor(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    """Returns random numbers on the GPU."""
    return torch.empty(shape, device="cuda", dtype=dtype).normal_()


def integers(below: int, *shape: int) -> torch.Tensor:
    """Returns random indices."""
    return torch.randint(below, shape, device="cuda")


def elementwise() -> Iterator[Case]:
    """Yields operations that read and write each element once."""

    def case(
        name: str, count: int, dtype: torch.dtype, call: Callable[..., object], n: int
    ) -> Case:
        def make() -> Callable[[], object]:
            x = [tensor(count, dtype=dtype) for _ in range(n)]
            return lambda: call(*x)

        return Case(name, f"{SHORT[dtype]} {count}", make)

    counts = [2**n for n in (8, 14, 17, 19, 20, 21, 22, 23, 24, 26, 28)]
    for count, dtype in itertools.product(counts, (FP32, BF16)):
        yield case("add", count, dtype, torch.add, 2)
        yield case("mul_scalar", count, dtype, lambda x: x * 2.0, 1)
        yield case("add_", count, dtype, lambda x, y: x.add_(y), 2)
        yield case("gelu", count, dtype, aten.gelu, 1)
        yield case("copy", count, dtype, lambda x: x.clone(), 1)
        yield case("zero_", count, dtype, lambda x: x.zero_(), 1)
        yield case("cast", count, dtype, lambda x: x.to(BF16 if x.dtype == FP32 else FP32), 1)
        yield case("fill_", count, dtype, lambda x: x.fill_(2.0), 1)
    counts = [2**n for n in (14, 20, 22, 24, 26)]
    for count, dtype in itertools.product(counts, (FP32, BF16)):
        yield case("gelu_backward", count, dtype, aten.gelu_backward, 2)
        yield case("silu", count, dtype, aten.silu, 1)
        yield case("relu", count, dtype, aten.relu, 1)
        yield case("tanh", count, dtype, aten.tanh, 1)
        yield case("exp", count, dtype, aten.exp, 1)
        yield case("sigmoid", count, dtype, aten.sigmoid, 1)
        yield case("pow3", count, dtype, lambda x: torch.pow(x, 3.0), 1)
        yield case("sqrt", count, dtype, torch.sqrt, 1)
        yield case("div", count, dtype, torch.div, 2)
        yield case("addcmul", count, dtype, torch.addcmul, 3)
        yield case("threshold_backward", count, dtype,
                   lambda g, x: aten.threshold_backward(g, x, 0), 2)  # fmt: skip
        yield case("native_dropout", count, dtype, lambda x: aten.native_dropout(x, 0.1, True), 1)
        yield case("gt", count, dtype, lambda x: x > 0, 1)
        yield case("where", count, dtype, lambda x, y: torch.where(x > 0, x, y), 2)
        yield case("normal_", count, dtype, lambda x: x.normal_(), 1)
        yield case("uniform_", count, dtype, lambda x: x.uniform_(), 1)
        yield case("bernoulli_", count, dtype, lambda x: x.bernoulli_(0.5), 1)


def strided() -> Iterator[Case]:
    """Yields copies, concatenations, and operations on transposed, sliced or broadcast tensors."""

    def case(name: str, shape: tuple[int, ...], dtype: torch.dtype,
             call: Callable[[torch.Tensor], object]) -> Case:  # fmt: skip
        def make() -> Callable[[], object]:
            x = tensor(*shape, dtype=dtype)
            return lambda: call(x)

        return Case(name, f"{SHORT[dtype]} {'x'.join(map(str, shape))}", make)

    for side, dtype in itertools.product((128, 512, 1024, 2048, 4096, 8192), (FP32, BF16)):
        yield case("transposed_copy", (side, side), dtype, lambda x: x.t().contiguous())
        yield case("transposed_add", (side, side), dtype, lambda x: x + x.t())
        yield case("bias_add", (side, side), dtype, lambda x: x + x[0])
        yield case("column_mul", (side, side), dtype, lambda x: x * x[:, :1])
        yield case(
            "half_of_rows", (side, side), dtype, lambda x: x[:, : x.shape[1] // 2].contiguous()
        )
        yield case("cat_rows", (side, side), dtype, lambda x: torch.cat([x, x]))
        yield case("cat_columns", (side, side), dtype, lambda x: torch.cat([x, x], dim=1))
        yield case("repeat", (side, side), dtype, lambda x: x.repeat(2, 1))
        yield case("triu", (side, side), dtype, torch.triu)
        yield case("masked_fill", (side, side), dtype,
                   lambda x: x.masked_fill(x[0] > 0, 0.0))  # fmt: skip
    for heads, dtype in itertools.product((12, 32), (FP32, BF16)):
        shape = (8, 1024, heads, 64)
        yield case("heads_first", shape, dtype, lambda x: x.transpose(1, 2).contiguous())
    for size, dtype in itertools.product((28, 56, 112), (FP32, BF16)):
        shape = (32, 64, size, size)
        yield case("to_channels_last", shape, dtype,
                   lambda x: x.contiguous(memory_format=torch.channels_last))  # fmt: skip


def rows() -> Iterator[Case]:
    """Yields reductions, normalizations, scans and sorts over rows."""

    def case(name: str, shape: tuple[int, ...], dtype: torch.dtype,
             make_call: Callable[[torch.Tensor], Callable[[], object]]) -> Case:  # fmt: skip
        return Case(
            name,
            f"{SHORT[dtype]} {'x'.join(map(str, shape))}",
            lambda: make_call(tensor(*shape, dtype=dtype)),
        )

    def softmax_backward(x: torch.Tensor) -> Callable[[], object]:
        y = x.softmax(-1)
        return lambda: aten._softmax_backward_data(x, y, -1, x.dtype)

    def layer_norm(x: torch.Tensor) -> Callable[[], object]:
        w = tensor(x.shape[-1], dtype=x.dtype)
        return lambda: aten.native_layer_norm(x, [x.shape[-1]], w, w, 1e-5)

    def layer_norm_backward(x: torch.Tensor) -> Callable[[], object]:
        w = tensor(x.shape[-1], dtype=x.dtype)
        _, mean, rstd = aten.native_layer_norm(x, [x.shape[-1]], w, w, 1e-5)
        return lambda: aten.native_layer_norm_backward(
            x, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True]
        )

    def rms_norm(x: torch.Tensor) -> Callable[[], object]:
        w = tensor(x.shape[-1], dtype=x.dtype)
        return lambda: aten._fused_rms_norm(x, [x.shape[-1]], w, 1e-5)

    def nll(x: torch.Tensor) -> Callable[[], object]:
        t = integers(x.shape[-1], x.shape[0])
        return lambda: aten.nll_loss_forward(x, t, None, 1, -100)

    def nll_backward(x: torch.Tensor) -> Callable[[], object]:
        t = integers(x.shape[-1], x.shape[0])
        out, weight = aten.nll_loss_forward(x, t, None, 1, -100)
        return lambda: aten.nll_loss_backward(out, x, t, None, 1, -100, weight)

    def gathered(x: torch.Tensor) -> Callable[[], object]:
        i = integers(x.shape[-1], *x.shape)
        return lambda: x.gather(-1, i)

    def scattered(x: torch.Tensor) -> Callable[[], object]:
        i = integers(x.shape[-1], *x.shape)
        return lambda: x.scatter_add_(-1, i, x)

    shapes = [
        (64, 64), (256, 1024), (1024, 1024), (4096, 256), (8192, 768), (8192, 4096),
        (2048, 50257), (8192, 50257), (64, 1048576), (1048576, 64), (32768, 2048),
    ]  # fmt: skip
    for shape, dtype in itertools.product(shapes, (FP32, BF16)):
        yield case("sum_all", shape, dtype, lambda x: lambda: x.sum())
        yield case("sum_rows", shape, dtype, lambda x: lambda: x.sum(-1))
        yield case("sum_columns", shape, dtype, lambda x: lambda: x.sum(0))
        yield case("mean_rows", shape, dtype, lambda x: lambda: x.mean(-1, keepdim=True))
        yield case("max_rows", shape, dtype, lambda x: lambda: x.max(-1))
        yield case("argmax", shape, dtype, lambda x: lambda: x.argmax(-1))
        yield case("norm", shape, dtype, lambda x: lambda: x.norm())
        yield case("var_mean", shape, dtype, lambda x: lambda: torch.var_mean(x, -1))
        yield case("softmax", shape, dtype, lambda x: lambda: x.softmax(-1))
        yield case("log_softmax", shape, dtype, lambda x: lambda: x.log_softmax(-1))
        yield case("softmax_backward", shape, dtype, softmax_backward)
        yield case("cumsum", shape, dtype, lambda x: lambda: x.cumsum(-1))
        yield case("layer_norm", shape, dtype, layer_norm)
        yield case("layer_norm_backward", shape, dtype, layer_norm_backward)
        yield case("rms_norm", shape, dtype, rms_norm)
        yield case("nll_loss", shape, dtype, nll)
        yield case("nll_loss_backward", shape, dtype, nll_backward)
    small = [shape for shape in shapes if shape[0] * shape[1] <= 2**26]
    for shape in small:
        yield case("sort", shape, FP32, lambda x: lambda: x.sort(-1))
        yield case("topk", shape, FP32, lambda x: lambda: x.topk(8, -1))
        yield case("gather", shape, FP32, gathered)
        yield case("scatter_add_", shape, FP32, scattered)
    for count in (2**10, 2**16, 2**20, 2**24, 2**26):
        flat = (count,)
        yield case("sort_flat", flat, FP32, lambda x: lambda: x.sort())
        yield case("cumsum_flat", flat, FP32, lambda x: lambda: x.cumsum(0))
        yield case("nonzero", flat, FP32, lambda x: lambda: x.nonzero())
        yield case("index_by_mask", flat, FP32, lambda x: lambda: x[x > 0])
        yield case("item", flat, FP32, lambda x: lambda: x[0].item())


def lookups() -> Iterator[Case]:
    """Yields lookups of table rows, such as embeddings, and their gradients."""

    def embedding(count: int, width: int, dtype: torch.dtype) -> Case:
        def make() -> Callable[[], object]:
            table, i = tensor(50257, width, dtype=dtype), integers(50257, count)
            return lambda: aten.embedding(table, i)

        return Case("embedding", f"{SHORT[dtype]} {count}x{width}", make)

    def backward(count: int, width: int, dtype: torch.dtype) -> Case:
        def make() -> Callable[[], object]:
            grad, i = tensor(count, width, dtype=dtype), integers(50257, count)
            return lambda: aten.embedding_dense_backward(grad, i, 50257, -1, False)

        return Case("embedding_dense_backward", f"{SHORT[dtype]} {count}x{width}", make)

    def index_rows(count: int, width: int, dtype: torch.dtype) -> Case:
        def make() -> Callable[[], object]:
            table, i = tensor(16384, width, dtype=dtype), integers(16384, count)
            return lambda: table[i]

        return Case("index", f"{SHORT[dtype]} {count}x{width}", make)

    def index_put(count: int, width: int, dtype: torch.dtype) -> Case:
        def make() -> Callable[[], object]:
            table, i = tensor(16384, width, dtype=dtype), integers(16384, count)
            grad = tensor(count, width, dtype=dtype)
            return lambda: table.index_put_((i,), grad, accumulate=True)

        return Case("index_put_", f"{SHORT[dtype]} {count}x{width}", make)

    def index_add(count: int, width: int, dtype: torch.dtype) -> Case:
        def make() -> Callable[[], object]:
            table, i = tensor(16384, width, dtype=dtype), integers(16384, count)
            grad = tensor(count, width, dtype=dtype)
            return lambda: table.index_add_(0, i, grad)

        return Case("index_add_", f"{SHORT[dtype]} {count}x{width}", make)

    def index_copy(count: int, width: int, dtype: torch.dtype) -> Case:
        def make() -> Callable[[], object]:
            table, i = tensor(65536, width, dtype=dtype), integers(65536, count)
            rows = tensor(count, width, dtype=dtype)
            return lambda: table.index_copy_(0, i, rows)

        return Case("index_copy_", f"{SHORT[dtype]} {count}x{width}", make)

    sizes = [(256, 64), (1024, 768), (8192, 768), (8192, 2048), (32768, 1024)]
    for (count, width), dtype in itertools.product(sizes, (FP32, BF16)):
        for kind in (embedding, backward, index_rows, index_put, index_add, index_copy):
            yield kind(count, width, dtype)


def products() -> Iterator[Case]:
    """Yields matrix products of various shapes, types and layouts."""

    def case(m: int, n: int, k: int, dtype: torch.dtype, layout: str, *, tf32: bool = False,
             batch: int = 0, bias: bool = False) -> Case:  # fmt: skip
        def make() -> Callable[[], object]:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            lead = (batch,) if batch else ()
            a = tensor(*lead, m, k, dtype=dtype)
            b = tensor(*lead, k, n, dtype=dtype)
            if layout[0] == "t":
                a = a.transpose(-1, -2).contiguous().transpose(-1, -2)
            if layout[1] == "t":
                b = b.transpose(-1, -2).contiguous().transpose(-1, -2)
            if bias:
                c = tensor(n, dtype=dtype)
                return lambda: torch.addmm(c, a, b)
            return (lambda: torch.bmm(a, b)) if batch else (lambda: torch.mm(a, b))

        kind = "tf32" if tf32 else SHORT[dtype]
        name = "addmm" if bias else "bmm" if batch else "mm"
        size = f"{batch}x{m}x{n}x{k}" if batch else f"{m}x{n}x{k}"
        return Case(name, f"{kind} {layout} {size}", make)

    squares = [(s, s, s) for s in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)]
    layers = [
        (8192, 768, 768), (8192, 2304, 768), (8192, 3072, 768), (8192, 768, 3072),
        (4096, 4096, 1024), (4096, 1024, 4096), (16384, 2048, 512), (2048, 5632, 2048),
        (2048, 2048, 5632), (8192, 50304, 768), (8192, 50257, 768), (512, 768, 768),
        (512, 3072, 768), (128, 1024, 1024), (1024, 1024, 16384), (768, 768, 8192),
        (768, 3072, 8192), (3072, 768, 8192), (50304, 768, 8192), (256, 256, 65536),
    ]  # fmt: skip
    slim = [(1, 2048, 2048), (1, 8192, 2048), (4, 4096, 4096), (8, 32000, 2048), (16, 4096, 4096),
            (32, 4096, 4096), (64, 4096, 4096), (32, 512, 512), (64, 10, 512),
            (4096, 4096, 64), (65536, 64, 64), (65536, 128, 32), (100000, 16, 64)]  # fmt: skip
    for (m, n, k), dtype in itertools.product([*squares, *layers, *slim], (BF16, FP16, FP32)):
        if dtype == FP16 and (m, n, k) not in layers:
            continue
        for layout in ("nn", "nt", "tn"):
            yield case(m, n, k, dtype, layout)
            if dtype == FP32 and layout == "nt":
                yield case(m, n, k, dtype, layout, tf32=True)
        if dtype != FP16:
            yield case(m, n, k, dtype, "nt", bias=True)
    for (b, m, n, k), dtype in itertools.product(
        [(96, 1024, 1024, 64), (96, 1024, 64, 1024), (384, 128, 128, 64), (384, 128, 64, 128),
         (128, 512, 512, 64), (128, 512, 64, 512), (8, 2048, 2048, 128), (64, 64, 64, 64),
         (32, 1, 512, 128), (32, 1, 128, 512), (8, 1024, 4096, 1024)],
        (BF16, FP32),
    ):  # fmt: skip
        yield case(m, n, k, dtype, "nt", batch=b)
        yield case(m, n, k, dtype, "nn", batch=b)
        if dtype == FP32:
            yield case(m, n, k, dtype, "nt", batch=b, tf32=True)


def attention() -> Iterator[Case]:
    """Yields fused attention, forward and backward."""
    kinds = {
        "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
        "efficient": torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
    }
    shapes = [(2, 4, 128), (32, 12, 128), (8, 12, 512), (8, 12, 1024), (4, 16, 2048), (1, 32, 4096),
              (1, 16, 16384), (16, 12, 197)]  # fmt: skip

    def case(kind: str, shape: tuple[int, int, int], width: int, dtype: torch.dtype,
             *, causal: bool, back: bool) -> Case:  # fmt: skip
        batch, heads, length = shape

        def make() -> Callable[[], object]:
            q, k, v = (
                tensor(batch, heads, length, width, dtype=dtype).requires_grad_(back)
                for _ in range(3)
            )
            with torch.nn.attention.sdpa_kernel(kinds[kind]):
                out = scaled_dot_product_attention(q, k, v, is_causal=causal)
            if back:
                grad = torch.empty_like(out)
                return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

            def call() -> object:
                with torch.nn.attention.sdpa_kernel(kinds[kind]):
                    return scaled_dot_product_attention(q, k, v, is_causal=causal)

            return call

        what = f"{SHORT[dtype]} {batch}x{heads}x{length}x{width}{' causal' if causal else ''}"
        return Case(f"{kind}_attention{'_backward' if back else ''}", what, make)

    for kind, shape, width, causal, back in itertools.product(
        kinds, shapes, (64, 128), (False, True), (False, True)
    ):
        yield case(kind, shape, width, BF16, causal=causal, back=back)
        if kind == "efficient":
            yield case(kind, shape, width, FP32, causal=causal, back=back)


def convolutions() -> Iterator[Case]:
    """Yields convolutions of various types and layouts.

    A case computes the output, the gradient of the input, or the gradient of the weight.
    """
    shapes = [  # batch, channels in, size, channels out, kernel, stride, groups
        (32, 3, 224, 64, 7, 2, 1), (32, 64, 56, 64, 1, 1, 1), (32, 64, 56, 64, 3, 1, 1),
        (32, 64, 56, 256, 1, 1, 1), (32, 256, 56, 128, 1, 1, 1), (32, 128, 56, 128, 3, 2, 1),
        (32, 128, 28, 128, 3, 1, 1), (32, 256, 14, 256, 3, 1, 1), (32, 1024, 14, 256, 1, 1, 1),
        (32, 512, 7, 512, 3, 1, 1), (32, 512, 7, 2048, 1, 1, 1), (128, 64, 56, 64, 3, 1, 1),
        (128, 256, 14, 256, 3, 1, 1), (8, 320, 64, 320, 3, 1, 1), (4, 128, 128, 128, 3, 1, 1),
        (16, 96, 56, 96, 7, 1, 96), (64, 144, 28, 144, 3, 1, 144), (64, 1, 28, 32, 3, 1, 1),
        (64, 32, 28, 64, 3, 1, 1), (32, 3, 224, 768, 16, 16, 1),
    ]  # fmt: skip

    def case(shape: tuple[int, ...], dtype: torch.dtype, *, last: bool, tf32: bool,
             part: str) -> Case:  # fmt: skip
        batch, into, size, out, kernel, stride, groups = shape

        def make() -> Callable[[], object]:
            torch.backends.cudnn.allow_tf32 = tf32
            form = torch.channels_last if last else torch.contiguous_format
            x = tensor(batch, into, size, size, dtype=dtype).contiguous(memory_format=form)
            w = tensor(out, into // groups, kernel, kernel, dtype=dtype)
            w = w.contiguous(memory_format=form)
            place = ([stride] * 2, [0 if stride == kernel else kernel // 2] * 2, [1, 1])
            if part == "forward":
                return lambda: aten.convolution(x, w, None, *place, False, [0, 0], groups)
            grad = torch.empty_like(aten.convolution(x, w, None, *place, False, [0, 0], groups))
            mask = [part == "input", part == "weight", False]
            return lambda: aten.convolution_backward(
                grad, x, w, None, *place, False, [0, 0], groups, mask
            )

        kind = "tf32" if tf32 else SHORT[dtype]
        layout = "channels_last" if last else "contiguous"
        what = f"{kind} {layout} {batch}x{into}x{size} to {out}, {kernel}/{stride}/{groups}"
        return Case(f"convolution_{part}", what, make)

    types = [(FP32, False), (FP32, True), (BF16, False)]
    for shape, (dtype, tf32), last, part in itertools.product(
        shapes, types, (False, True), ("forward", "input", "weight")
    ):
        yield case(shape, dtype, last=last, tf32=tf32, part=part)


def images() -> Iterator[Case]:
    """Yields normalization, pooling and upsampling of images, forward and backward."""

    def batch_norm(shape: tuple[int, ...], dtype: torch.dtype, *, last: bool, back: bool) -> Case:
        def make() -> Callable[[], object]:
            form = torch.channels_last if last else torch.contiguous_format
            x = tensor(*shape, dtype=dtype).contiguous(memory_format=form).requires_grad_(back)
            layer = torch.nn.BatchNorm2d(shape[1], device="cuda")
            y = layer(x)
            if not back:
                return lambda: layer(x)
            grad, asked = torch.empty_like(y), [x, *layer.parameters()]
            return lambda: torch.autograd.grad(y, asked, grad, retain_graph=True)

        layout = "channels_last" if last else "contiguous"
        what = f"{SHORT[dtype]} {layout} {'x'.join(map(str, shape))}"
        return Case(f"batch_norm{'_backward' if back else ''}", what, make)

    def group_norm(shape: tuple[int, ...], dtype: torch.dtype, *, back: bool) -> Case:
        def make() -> Callable[[], object]:
            x = tensor(*shape, dtype=dtype).requires_grad_(back)
            layer = torch.nn.GroupNorm(32, shape[1], device="cuda", dtype=dtype)
            y = layer(x)
            if not back:
                return lambda: layer(x)
            grad, asked = torch.empty_like(y), [x, *layer.parameters()]
            return lambda: torch.autograd.grad(y, asked, grad, retain_graph=True)

        what = f"{SHORT[dtype]} {'x'.join(map(str, shape))}"
        return Case(f"group_norm{'_backward' if back else ''}", what, make)

    def pool(shape: tuple[int, ...], dtype: torch.dtype, kind: str, *, back: bool) -> Case:
        def make() -> Callable[[], object]:
            x = tensor(*shape, dtype=dtype).requires_grad_(back)
            calls = {
                "max_pool2d": lambda: torch.nn.functional.max_pool2d(x, 3, 2, 1),
                "avg_pool2d": lambda: torch.nn.functional.avg_pool2d(x, 2),
                "upsample_nearest2d": lambda: torch.nn.functional.interpolate(x, scale_factor=2),
                "mean_2d": lambda: x.mean((2, 3)),
            }
            y = calls[kind]()
            if not back:
                return calls[kind]
            grad = torch.empty_like(y)
            return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)

        what = f"{SHORT[dtype]} {'x'.join(map(str, shape))}"
        return Case(f"{kind}{'_backward' if back else ''}", what, make)

    shapes = [(32, 64, 112, 112), (32, 256, 56, 56), (32, 512, 14, 14), (32, 2048, 7, 7),
              (64, 32, 28, 28), (8, 320, 64, 64)]  # fmt: skip
    for shape, dtype, back in itertools.product(shapes, (FP32, BF16), (False, True)):
        for last in (False, True):
            yield batch_norm(shape, dtype, last=last, back=back)
        yield group_norm(shape, dtype, back=back)
        for kind in ("max_pool2d", "avg_pool2d", "upsample_nearest2d", "mean_2d"):
            yield pool(shape, dtype, kind, back=back)


def lists() -> Iterator[Case]:
    """Yields operations that optimizers use on lists of tensors: `_foreach_*` and fused AdamW."""

    def make_lists(count: int, size: int, n: int) -> list[list[torch.Tensor]]:
        return [[tensor(size) for _ in range(count)] for _ in range(n)]

    def case(name: str, count: int, size: int, n: int, call: Callable[..., object]) -> Case:
        def make() -> Callable[[], object]:
            x = make_lists(count, size, n)
            return lambda: call(*x)

        return Case(name, f"fp32 {count} of {size}", make)

    def adamw(count: int, size: int) -> Case:
        def make() -> Callable[[], object]:
            p, g, m, v = make_lists(count, size, 4)
            steps = [torch.ones((), device="cuda") for _ in range(count)]
            for x in v:
                x.abs_()
            return lambda: aten._fused_adamw_(
                p, g, m, v, [], steps, lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8,
                amsgrad=False, maximize=False,
            )  # fmt: skip

        return Case("_fused_adamw_", f"fp32 {count} of {size}", make)

    for count, size in [(2, 64), (10, 1024), (100, 1024), (100, 65536), (150, 589824), (8, 2**23),
                        (1, 2**26), (300, 4096)]:  # fmt: skip
        yield case("_foreach_add", count, size, 2, torch._foreach_add)
        yield case("_foreach_mul_", count, size, 1, lambda x: torch._foreach_mul_(x, 0.9))
        yield case("_foreach_lerp_", count, size, 2, lambda x, y: torch._foreach_lerp_(x, y, 0.1))
        yield case("_foreach_addcdiv_", count, size, 3,
                   lambda x, y, z: torch._foreach_addcdiv_(x, y, z, -0.1))  # fmt: skip
        yield case("_foreach_sqrt", count, size, 1, torch._foreach_sqrt)
        yield case("_foreach_norm", count, size, 1, torch._foreach_norm)
        yield adamw(count, size)


def recurrent() -> Iterator[Case]:
    """Yields recurrent layers, which cuDNN runs."""

    def case(kind: str, layers: int, batch: int, length: int, width: int, *, back: bool) -> Case:
        def make() -> Callable[[], object]:
            torch.backends.cudnn.allow_tf32 = False
            net = getattr(torch.nn, kind)(width, width, layers, batch_first=True, device="cuda")
            x = tensor(batch, length, width).requires_grad_(back)
            if not back:
                return lambda: net(x)[0]
            y = net(x)[0]
            grad, asked = torch.empty_like(y), [x, *net.parameters()]
            return lambda: torch.autograd.grad(y, asked, grad, retain_graph=True)

        what = f"fp32 {layers}x{batch}x{length}x{width}"
        return Case(f"{kind.lower()}{'_backward' if back else ''}", what, make)

    for kind, back in itertools.product(("LSTM", "GRU"), (False, True)):
        sizes = [(1, 32, 32, 128), (2, 64, 128, 512), (2, 128, 64, 1024), (1, 16, 512, 256)]
        for layers, batch, length, width in sizes:
            yield case(kind, layers, batch, length, width, back=back)


def copies() -> Iterator[Case]:
    """Yields copies between host and device."""

    def case(name: str, size: int, *, pinned: bool, to_device: bool) -> Case:
        def make() -> Callable[[], object]:
            there = torch.empty(size, dtype=torch.uint8, device="cuda")
            here = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            if to_device:
                return lambda: there.copy_(here, non_blocking=pinned)
            return lambda: here.copy_(there, non_blocking=pinned)

        return Case(name, str(size), make)

    for n in (2, 12, 16, 20, 22, 24, 26, 28):
        for pinned, to_device in itertools.product((False, True), (False, True)):
            name = f"{'pinned' if pinned else 'pageable'}_{'to' if to_device else 'from'}_device"
            yield case(name, 2**n, pinned=pinned, to_device=to_device)


GROUPS = (
    elementwise, strided, rows, lookups, products, attention, convolutions, images, lists,
    recurrent, copies,
)  # fmt: skip
WAITS = {"nonzero", "index_by_mask", "item", "pageable_to_device", "pageable_from_device"}
"""Operations whose call waits for the GPU. `measure_case` times them only by the host's clock."""


def cases(only: str) -> Iterator[Case]:
    """Yields the cases whose operation or group `only` names.

    `only` separates the names by commas. If it is empty, yields all cases.
    """
    wanted = set(only.split(",")) if only else None
    for group in GROUPS:
        for case in group():
            if wanted is None or case.operation in wanted or group.__name__ in wanted:
                yield case


def measure_case(case: Case, sleep: float) -> tuple[float, float]:
    """Returns one call's time on the GPU and its time on the host, in ns.

    Each time is the median of three runs. A run repeats the call.
    """
    call = case.make()
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = time.perf_counter() - begin
    count = max(3, min(40, int(0.004 / max(once, 1e-6))))
    on_gpu, on_host = [], []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        if case.operation in WAITS:
            begin = time.perf_counter()
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            on_host.append((time.perf_counter() - begin) / count * 1e9)
            on_gpu.append(on_host[-1])
            continue
        torch.cuda._sleep(int(sleep * 2e9 * 0.0002 * count))
        start.record()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        on_host.append((time.perf_counter() - begin) / count * 1e9)
        end.record()
        torch.cuda.synchronize()
        on_gpu.append(start.elapsed_time(end) / count * 1e6)
    return statistics.median(on_gpu), statistics.median(on_host)


def measure(only: str, results: Path) -> None:
    """Measures cases on a GPU, and writes their times."""
    path = results / "kernels.csv"
    skipped = 0
    begin = time.time()
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["# " + torch.cuda.get_device_name(), f"torch {torch.__version__}"])
        out.writerow(["operation", "case", "gpu_ns", "host_ns"])
        for case in cases(only):
            try:
                gpu, host = measure_case(case, 1.0)
            except (RuntimeError, AttributeError, TypeError) as error:
                skipped += 1
                print(f"skipped {case.name}: {str(error).splitlines()[0][:100]}")
                torch.cuda.empty_cache()
                continue
            out.writerow([case.operation, case.what, f"{gpu:.0f}", f"{host:.0f}"])
            torch.cuda.empty_cache()
    print(f"written to {path}, {skipped} cases skipped, {time.time() - begin:.0f} s")


def simulated_ns(case: Case) -> float:
    """Returns the time of a case by the simulated GPU's clock."""
    call = case.make()
    call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if case.operation not in WAITS:
        torch.cuda._sleep(10**7)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end) * 1e6)


def compare(only: str, worst: int, results: Path) -> None:
    """Compares the simulated clock with the measurements."""
    with (results / "kernels.csv").open() as file:
        next(file)
        measured = {(row["operation"], row["case"]): row for row in csv.DictReader(file)}
    ratios: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for case in cases(only):
        row = measured.get((case.operation, case.what))
        if row is None:
            continue
        ratio = simulated_ns(case) / float(row["gpu_ns"])
        ratios[case.operation].append((ratio, f"{case.name}: {row['gpu_ns']} ns"))
        torch.cuda.empty_cache()
    every = [ratio for rows_ in ratios.values() for ratio in rows_]
    for name, found in ratios.items():
        values = sorted(ratio for ratio, _ in found)
        print(f"{name:28} {len(values):4} cases  {values[0]:6.2f} {statistics.median(values):6.2f} "
              f"{values[-1]:6.2f}")  # fmt: skip
    errors = [abs(math.log(ratio)) for ratio, _ in every]
    print(f"{len(every)} cases, median error {math.expm1(statistics.median(errors)):.1%}")
    for ratio, text in sorted(every, key=lambda row: -abs(math.log(row[0])))[:worst]:
        print(f"{ratio:6.2f}  {text}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare"])
    parser.add_argument("--only", default="")
    parser.add_argument("--worst", type=int, default=20, help="how many cases to list")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.what == "measure":
        measure(chosen.only, chosen.results)
    else:
        compare(chosen.only, chosen.worst, chosen.results)


if __name__ == "__main__":
    main()
