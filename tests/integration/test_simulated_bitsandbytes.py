"""Tests how simulated GPUs run bitsandbytes's kernels, which take addresses instead of tensors.

A small package stands in for bitsandbytes.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulated import assumptions, on_simulated_gpus, output_of, running_simulation

torch = pytest.importorskip("torch")

FUNCTIONS = (
    *("cdequantize_blockwise_fp32", "cadam_8bit_blockwise_grad_fp32", "cgemm_4bit_fp16"),
    *("cigemmlt_32", "cget_managed_ptr", "cprefetch", "get_context", "cnobody_knows"),
)
EXTENSION = """
import ctypes as ct
from pathlib import Path


class Native:
    def __init__(self, lib):
        self._lib = lib


lib = Native(ct.cdll.LoadLibrary(str(Path(__file__).parent / "libbitsandbytes_cuda130.so")))
"""
OPERATIONS = """
import torch

register_kernel = torch.library.register_kernel
torch.library.define("bitsandbytes::int8_vectorwise_quant", "(Tensor A, float threshold) -> Tensor")
"""
QUANTIZATION = """
from bitsandbytes._ops import register_kernel


@register_kernel("bitsandbytes::int8_vectorwise_quant", "cuda")
def _(A, threshold):
    return (A.abs() >= threshold).any(dim=0).nonzero()
"""


def installed() -> Any:
    """Installs the stand-in package in the test's empty folder. Returns its library of kernels."""
    package = Path("bitsandbytes")
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cextension.py").write_text(EXTENSION)
    (package / "_ops.py").write_text(OPERATIONS)
    (package / "quantization.py").write_text(QUANTIZATION)
    names = b"\0".join(name.encode() for name in FUNCTIONS)
    (package / "libbitsandbytes_cuda130.so").write_bytes(b"\x7fELF\0" + names + b"\0")
    sys.path.insert(0, str(Path.cwd()))
    importlib.import_module("bitsandbytes.quantization")
    return importlib.import_module("bitsandbytes.cextension").lib._lib


@on_simulated_gpus()
def test_what_a_kernel_writes_is_not_known_and_what_it_reads_stays() -> None:
    lib = installed()
    read, written, beside = (torch.zeros(1024, device="cuda") for _ in range(3))
    pointer = ctypes.c_void_p(written.data_ptr())
    lib.cdequantize_blockwise_fp32.argtypes = [ctypes.c_void_p]
    lib.cdequantize_blockwise_fp32(None, read.data_ptr(), beside.data_ptr(), pointer, 64, 1024, 0)
    assert not written.eq(0).all()
    assert read.eq(0).all()
    assert beside.eq(0).all()
    assert "did not load" in assumptions()["bitsandbytes"]


@on_simulated_gpus()
def test_a_kernel_writes_as_many_elements_as_it_is_told() -> None:
    lib = installed()
    flat = torch.zeros(4096, device="cuda")
    lib.cdequantize_blockwise_fp32(None, 0, 0, flat[1024:].data_ptr(), 64, 1024, 0)
    assert flat[:1024].eq(0).all()
    assert not flat[1024:2048].eq(0).all()
    assert flat[2048:].eq(0).all()


@on_simulated_gpus()
def test_an_optimizer_writes_parameters_and_states_alone() -> None:
    lib = installed()
    names = ("parameter", "gradient", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2")
    of = {name: torch.zeros(256, device="cuda") for name in names}
    at = [of[name].data_ptr() for name in names]
    numbers = [ctypes.c_float(0.5)] * 7
    last = (
        *at[4:],
        ctypes.c_float(0),
        ctypes.c_float(1),
        ctypes.c_bool(False),
        ctypes.c_int32(256),
    )
    lib.cadam_8bit_blockwise_grad_fp32(*at[:4], *numbers, *last)
    changed = {name for name, tensor in of.items() if not tensor.eq(0).all()}
    assert changed == {"parameter", "state1", "state2", "absmax1", "absmax2"}


@on_simulated_gpus()
def test_products_take_longer_than_their_bytes() -> None:
    lib = installed()
    simulation = running_simulation()
    tensors = [torch.empty(1 << 20, dtype=torch.int8, device="cuda") for _ in range(3)]
    at = [tensor.data_ptr() for tensor in tensors]

    def time(terms: int) -> float:
        before = simulation.library.clock(0).busy_ns
        assert lib.cigemmlt_32(1, 1024, 1024, terms, *at, None, 1024, 1024, 1024, 0) == 0
        return float(simulation.library.clock(0).busy_ns - before)

    assert time(1 << 20) > 100 * time(16) > 0


@on_simulated_gpus()
def test_managed_memory_is_the_hosts_and_its_size_is_said() -> None:
    lib = installed()
    address = lib.cget_managed_ptr(ctypes.c_size_t(8 << 20))
    numbers = (ctypes.c_uint8 * (8 << 20)).from_address(address)
    state = torch.frombuffer(numbers, dtype=torch.uint8)
    assert state.eq(0).all()
    state[-1] = 7
    assert numbers[-1] == 7
    lib.cprefetch(ctypes.c_void_p(address), ctypes.c_size_t(8 << 20), ctypes.c_int32(0))
    assert torch.cuda.memory_reserved() == 0
    assert "managed memory" in assumptions()["bitsandbytes::cget_managed_ptr"]


@on_simulated_gpus()
def test_a_function_that_nobody_knows_may_write_all_it_is_given() -> None:
    lib = installed()
    one, other = (torch.zeros(1024, device="cuda") for _ in range(2))
    lib.cnobody_knows(one.data_ptr(), other.data_ptr(), 3)
    assert not one.eq(0).all()
    assert not other.eq(0).all()
    assert "does not know" in assumptions()["bitsandbytes::cnobody_knows"]
    with pytest.raises(AttributeError, match="undefined symbol: cnot_there"):
        lib.cnot_there  # noqa: B018


@on_simulated_gpus()
def test_few_features_that_nobody_knows_have_outliers() -> None:
    installed()
    unknown = torch.empty(512, 8192, device="cuda", dtype=torch.float16)
    assert 0 < torch.ops.bitsandbytes.int8_vectorwise_quant(unknown, 6.0).numel() < 100
    assert "one feature in a thousand" in assumptions()["bitsandbytes::int8_vectorwise_quant"]
    known = torch.zeros(4, 4, device="cuda", dtype=torch.float16)
    known[:, 2] = 9
    assert torch.ops.bitsandbytes.int8_vectorwise_quant(known, 6.0).tolist() == [[2]]


def count_outliers(count: int) -> None:
    installed()
    features = torch.empty(512, 8192, device="cuda", dtype=torch.float16)
    assert torch.ops.bitsandbytes.int8_vectorwise_quant(features, 6.0).numel() == count


@pytest.mark.long
@pytest.mark.parametrize(("unknown", "count"), [("most", 8192), ("least", 0)])
def test_all_features_have_outliers_at_most_and_none_at_least(unknown: str, count: int) -> None:
    output_of(count_outliers, "--unknown", unknown, arguments=(count,))
