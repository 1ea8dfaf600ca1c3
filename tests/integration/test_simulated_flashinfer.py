"""Tests FlashInfer's kernels, which its package compiles on first call."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulated import assumptions, on_simulated_gpus, simulate

torch = pytest.importorskip("torch")

PACKAGE = '''
class JitSpec:
    """A module to be compiled."""

    def __init__(self, name):
        self.name = name

    def build_and_load(self):
        raise RuntimeError("a compiler was asked for")

    def load(self, path):
        raise RuntimeError("a library was loaded")
'''


def module(name: str = "sampling") -> Any:
    """Returns a compiled module, as a package like FlashInfer makes it."""
    folder = Path("flashinfer/jit")
    folder.mkdir(parents=True)
    (folder / "core.py").write_text(PACKAGE)
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module("flashinfer.jit.core").JitSpec(name).build_and_load()


@on_simulated_gpus(gpu="H100")
def test_sampled_tokens_are_of_the_vocabulary() -> None:
    kernels = module()
    scores = torch.rand(300, 50, device="cuda")
    tokens = torch.full((300,), -1, dtype=torch.int32, device="cuda")
    held = torch.cuda.memory_allocated()
    kernels.sampling_from_logits(scores, tokens, None, True, None, 0, None, 0)
    found = tokens.tolist()
    assert set(found) <= set(range(50))
    assert len(set(found)) > 10
    assert torch.cuda.max_memory_allocated() == held  # the kernel allocates nothing
    assert "flashinfer 0.6.12" in assumptions()["flashinfer"]


@on_simulated_gpus(gpu="H100")
def test_it_writes_its_results_and_no_other_argument() -> None:
    kernels = module()
    scores = torch.ones(4, 8, device="cuda")
    made = torch.zeros(4, 8, device="cuda")
    kernels.top_k_renorm_probs(scores, made, None, 5, None)
    assert scores.eq(1).all()
    assert not made.eq(0).all()


@on_simulated_gpus(gpu="H100")
def test_its_kernels_take_time_of_the_card() -> None:
    kernels = module()
    scores, tokens = torch.rand(256, 128_000, device="cuda"), torch.zeros(256, device="cuda").int()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    kernels.sampling_from_logits(scores, tokens, None, True, None, 0, None, 0)
    end.record()
    torch.cuda.synchronize()
    # In milliseconds. The kernel reads all scores, at 3.4e12 bytes/s or less.
    assert begin.elapsed_time(end) >= 1000 * scores.nbytes / 3.4e12


@on_simulated_gpus(gpu="H100")
def test_its_all_reduce_writes_its_results_and_no_input() -> None:
    kernels = module("trtllm_comm")
    given, residual, gamma = (torch.ones(4, 8, device="cuda") for _ in range(3))
    summed, normed = (torch.zeros(4, 8, device="cuda") for _ in range(2))
    addresses = torch.zeros(7, dtype=torch.int64, device="cuda")
    kernels.trtllm_lamport_initialize(addresses.data_ptr(), 28, torch.float16)
    sizes, switches = (2, 0, 4, 8), (True, True, False, True)
    kernels.trtllm_allreduce_fusion(
        *(given, *sizes, addresses, *switches, 1),
        *(None, residual, summed, normed, None, None),
        *(gamma, 1e-5, None, 0, None, 0.0),
    )
    assert all(each.eq(1).all() for each in (given, residual, gamma))
    assert not any(each.eq(0).all() for each in (summed, normed))


def calls_an_unknown_kernel() -> None:
    module("batch_prefill").plan(torch.zeros(4, device="cuda"))


def test_a_kernel_that_is_not_known_is_named_in_one_line() -> None:
    done = simulate(calls_an_unknown_kernel, gpu="H100")
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert "plimsoll does not simulate plan of FlashInfer's module batch_prefill" in last
    assert "attention_backend" in last
