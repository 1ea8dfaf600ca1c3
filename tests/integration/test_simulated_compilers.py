"""Tests simulated GPUs with NVIDIA's Python bindings, and with kernels that libraries compile.

Stub packages stand in for the bindings and for the libraries.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")


def package(name: str, text: str) -> Any:
    """Writes a module to the working folder, imports it, and returns it."""
    path = Path(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


CUTE = """
class CompileCallable:
    def __call__(self, function, *arguments, options=None):
        return self._compile(function, *arguments, options=options)

    def _compile(self, function, *arguments, options=None):
        raise RuntimeError("a driver was asked for")
"""


@on_simulated_gpus(gpu="H100")
def test_cute_compiles_nothing_and_its_kernels_take_no_memory() -> None:
    compile_kernel = package("cutlass.base_dsl.compiler", CUTE).CompileCallable()
    kernel = compile_kernel(print, "fake", "fake", 1e-6, options="--x")
    x, y = torch.ones(2, 1 << 28, device="cuda").unbind()
    held = torch.cuda.memory_allocated()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    kernel(x, y, 1e-6)
    end.record()
    end.synchronize()
    assert torch.cuda.max_memory_allocated() == held
    assert 0.1 < begin.elapsed_time(end) < 10  # ms: 2 GiB at a few TB/s


BINDINGS = """
from enum import IntEnum
cudaError_t = IntEnum("cudaError_t", ["cudaSuccess"], start=0)
cudaStreamCaptureStatus = IntEnum(
    "cudaStreamCaptureStatus",
    ["cudaStreamCaptureStatusNone", "cudaStreamCaptureStatusActive"], start=0)

def cudaStreamGetCaptureInfo(stream):
    raise RuntimeError("a driver was asked for")
"""


@on_simulated_gpus(gpu="H100")
def test_bindings_of_the_runtime_know_captures() -> None:
    runtime = package("cuda.bindings.runtime", BINDINGS)

    def status() -> tuple[int, ...]:
        stream = torch.cuda.current_stream().cuda_stream
        return tuple(map(int, runtime.cudaStreamGetCaptureInfo(stream)))

    assert status() == (0, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = status()
        torch.ones(4, device="cuda")
    assert inside == (0, 1)
    assert status() == (0, 0)


DEEP_GEMM = """
import torch
fragment = torch.library.Library("deep_gemm", "FRAGMENT")
def refuse(*_):
    raise RuntimeError("a driver was asked for")
for name, schema in {
    "set_pdl": "(bool enable) -> ()",
    "get_pdl": "() -> bool",
    "get_tma_aligned_size": "(int rows, int item) -> int",
}.items():
    fragment.define(name + schema)
fragment.impl("set_pdl", refuse, "CompositeImplicitAutograd")
fragment.impl("get_pdl", refuse, "CompositeImplicitAutograd")
fragment.impl("get_tma_aligned_size", lambda rows, item: rows, "CompositeImplicitAutograd")
fragment.define("fp8_fp4_gemm_nt(Tensor a, Tensor a_sf, Tensor b, Tensor b_sf, Tensor(a!) d) -> ()")
fragment.define("fp8_mqa_logits(Tensor q) -> Tensor")
"""


@on_simulated_gpus(gpu="H100")
def test_deep_gemms_operations_are_known_by_name() -> None:
    package("deep_gemm", DEEP_GEMM)
    # Whenever a library is loaded, plimsoll looks for new operations. Any library would do.
    torch.ops.load_library(torch._C.__file__)
    operations = torch.ops.deep_gemm
    operations.set_pdl(True)
    assert operations.get_pdl() is True
    assert operations.get_tma_aligned_size(7, 4) == 7  # a host function, which runs unchanged
    left, right = (torch.empty(n, 4096, dtype=torch.uint8, device="cuda") for n in (256, 512))
    scales = [torch.empty(4, 32, device="cuda"), torch.empty(32, 4, device="cuda").T]
    made = torch.empty(256, 512, dtype=torch.bfloat16, device="cuda")
    held = torch.cuda.memory_allocated()
    operations.fp8_fp4_gemm_nt(left, scales[0], right, scales[1], made)
    # the operands are not copied; only reordered scales are allocated, and freed again
    assert torch.cuda.memory_allocated() == held
    assert 0 < torch.cuda.max_memory_allocated() - held < 4096
    with pytest.raises(NotImplementedError, match="fp8_mqa_logits"):
        operations.fp8_mqa_logits(left)
