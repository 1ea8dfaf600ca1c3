"""Tests operations registered after the first use of CUDA, and large tensors moved to `meta`."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")


def define(schema: str, shape: Any) -> Any:
    """Defines a new operation with a shape function."""
    library = torch.library.Library("late", "FRAGMENT")
    name = library.define(schema)
    library.impl(name.split("::")[-1], shape, "Meta")
    return library


def register_native(name: str, kernel: Any) -> Any:
    """Registers a CUDA kernel as a C++ library does: with the name of a source file."""
    library = torch._C._dispatch_library("IMPL", "late", "CUDA", "kernels.cu", 1)
    library.impl(name, "CUDA", kernel)
    return library


def refuse(*_: Any) -> Any:
    raise AssertionError("a kernel ran on memory that is not there")


@on_simulated_gpus()
def test_a_native_kernel_that_is_registered_late_does_not_run() -> None:
    x = torch.ones(4, device="cuda")
    _kept = (
        define("three(Tensor x) -> Tensor", lambda x: x.new_empty(3)),
        register_native("three", refuse),
    )
    x.add(1)  # plimsoll looks for new kernels at the next operation; any operation would do
    held = torch.cuda.memory_allocated()
    y = torch.ops.late.three(x)
    assert y.is_cuda
    assert y.shape == (3,)
    assert torch.cuda.memory_allocated() - held == 512


@on_simulated_gpus()
def test_an_operation_of_a_library_is_taken_over_before_its_first_call() -> None:
    x = torch.ones(4, device="cuda")
    _schema = define("first(Tensor x) -> Tensor", lambda x: x.new_empty(5))
    _kernel = register_native("first", refuse)
    assert "_ctypes_test" not in sys.modules
    pytest.importorskip("_ctypes_test")  # takes the place of a library's compiled module
    assert torch.ops.late.first(x).shape == (5,)


@on_simulated_gpus()
def test_a_kernel_for_cuda_that_comes_after_its_schema_is_taken_over_too() -> None:
    x = torch.ones(4, device="cuda")
    _schema = define("second(Tensor x) -> Tensor", lambda x: x.new_empty(2))
    x.add(1)
    _kernel = register_native("second", refuse)
    # Whenever a library is loaded, plimsoll looks for new kernels. Any library would do.
    torch.ops.load_library(torch._C.__file__)
    assert torch.ops.late.second(x).shape == (2,)


@on_simulated_gpus()
def test_a_kernel_in_python_runs_as_it_is() -> None:
    x = torch.ones(4, device="cuda")
    library = define("doubled(Tensor x) -> Tensor", torch.empty_like)
    library.impl("doubled", lambda x: x * 2, "CUDA")
    x.add(1)
    assert torch.ops.late.doubled(x).tolist() == [2] * 4

    @torch.library.custom_op("late::tripled", mutates_args=(), device_types="cuda")  # type: ignore[untyped-decorator]
    def tripled(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return x * 3

    assert tripled(x).tolist() == [3] * 4


@on_simulated_gpus()
def test_a_large_tensor_of_the_host_moves_to_meta() -> None:
    large = torch.randn(1 << 20)
    moved = large.to("meta")
    assert moved.is_meta
    assert moved.shape == large.shape
    module = torch.nn.Linear(2048, 2048).to("meta")
    assert module.weight.is_meta
    assert module.to_empty(device="cuda").weight.is_cuda
