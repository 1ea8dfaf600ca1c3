"""Tests operations of serving engines. Each test defines operations as an engine does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

MARLIN = (
    "marlin_gemm(Tensor a, Tensor? c_or_none, Tensor b_q_weight, Tensor? b_bias_or_none, "
    "Tensor b_scales, Tensor? a_scales, Tensor? global_scale, Tensor? b_zeros_or_none, "
    "Tensor? g_idx_or_none, Tensor? perm_or_none, Tensor workspace, int b_type_id, SymInt size_m, "
    "SymInt size_n, SymInt size_k, bool is_k_full, bool use_atomic_add, bool use_fp32_reduce, "
    "bool is_zp_float) -> Tensor"
)
CACHING = (
    "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping) -> ()"
)


def define(library: str, *schemas: str) -> list[Any]:
    """Defines operations with CUDA kernels that must never run."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a kernel ran on memory that is not there")

    fragment = torch.library.Library(library, "FRAGMENT")
    kernels = torch._C._dispatch_library("IMPL", library, "CUDA", "kernels.cu", 1)
    for schema in schemas:
        fragment.define(schema)
        kernels.impl(schema.partition("(")[0], "CUDA", refuse)
    # Whenever a library is loaded, plimsoll looks for new operations. Any library would do.
    torch.ops.load_library(torch._C.__file__)
    return [fragment, kernels]


def milliseconds(run: Any) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def held_inside(run: Any) -> tuple[Any, int]:
    """Returns the result of `run`, and how far the peak exceeds the memory held afterwards."""
    torch.cuda.reset_peak_memory_stats()
    result = run()
    return result, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()


@on_simulated_gpus(gpu="H100")
def test_a_kernel_that_writes_into_a_cache_moves_what_it_is_given() -> None:
    import plimsoll

    plimsoll.simulated_operation("engine::store_by_rule", workspace=0)
    _kept = define("engine", "store" + CACHING, "store_by_rule" + CACHING)
    keys, values = (torch.empty(64, 8, 128, dtype=torch.half, device="cuda") for _ in range(2))
    large, small = (
        torch.empty(2, n, 8, 128, dtype=torch.half, device="cuda") for n in (4 << 20, 64)
    )
    slots = torch.empty(64, dtype=torch.int64, device="cuda")
    for operation in (torch.ops.engine.store, torch.ops.engine.store_by_rule):
        into_large = milliseconds(lambda op=operation: op(keys, values, *large, slots))
        into_small = milliseconds(lambda op=operation: op(keys, values, *small, slots))
        assert into_large == pytest.approx(into_small, rel=0.5)
        assert into_large < 0.1  # ms; writing the whole cache would take 10


@on_simulated_gpus(gpu="H100")
def test_what_is_written_besides_caches_is_moved_whole() -> None:
    _kept = define("engine", "scale(Tensor(a!) x, Tensor weight) -> ()")
    x = torch.empty(1 << 30, dtype=torch.half, device="cuda")
    weight = torch.empty(1024, dtype=torch.half, device="cuda")
    assert milliseconds(lambda: torch.ops.engine.scale(x, weight)) > 1


@on_simulated_gpus(gpu="H100")
@pytest.mark.parametrize("rows", [3, 5120])
def test_products_of_marlin_sum_up_in_floats(rows: int) -> None:
    _kept = define("_C", MARLIN)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    left = torch.empty(rows, 4096, dtype=torch.bfloat16, device="cuda")
    weights = torch.empty(256, 28672, dtype=torch.int32, device="cuda")
    scales = torch.empty(32, 14336, dtype=torch.bfloat16, device="cuda")
    space = torch.empty(processors, dtype=torch.int32, device="cuda")
    order = torch.empty(4096, dtype=torch.int32, device="cuda")

    def multiply(*order: Any) -> Any:
        return torch.ops._C.marlin_gemm(
            left, None, weights, None, scales, None, None, None, *(order or (None, None)), space,
            0, rows, 14336, 4096, True, False, True, False)  # fmt: skip

    made, sums = held_inside(multiply)
    assert (made.shape, made.dtype) == ((rows, 14336), torch.bfloat16)
    assert sums == processors * (16 if rows == 3 else 64) * 256 * 4
    _, reordered = held_inside(lambda: multiply(order, order))
    assert reordered - sums == left.nbytes


@on_simulated_gpus(gpu="H100")
def test_products_of_few_rows_take_as_long_as_their_weights() -> None:
    _kept = define("_C", MARLIN)
    left = torch.empty(1, 16384, dtype=torch.half, device="cuda")
    weights = torch.empty(1024, 32768, dtype=torch.int32, device="cuda")
    dense = torch.empty(16384, 16384, dtype=torch.half, device="cuda")
    scales = torch.empty(128, 16384, dtype=torch.half, device="cuda")
    sizes = (1, 16384, 16384)
    arguments = (left, None, weights, None, scales, *5 * (None,), scales, 0, *sizes)
    few = milliseconds(lambda: torch.ops._C.marlin_gemm(*arguments, True, False, True, False))
    many = milliseconds(lambda: left @ dense)
    assert 0.2 < few / many < 0.4


@on_simulated_gpus(gpu="H100")
def test_products_of_machete_keep_the_sums_of_blocks_that_share_their_terms() -> None:
    fragment, *kept = define("_C", "machete_mm(Tensor A, Tensor B) -> Tensor")

    @torch.library.register_fake("_C::machete_mm", lib=fragment)  # type: ignore[untyped-decorator]
    def fake(a: Any, b: Any) -> Any:
        return a.new_empty(a.size(0), b.size(1))

    weights = torch.empty(512, 14336, dtype=torch.int32, device="cuda")

    def inside(rows: int) -> int:
        left = torch.empty(rows, 4096, dtype=torch.half, device="cuda")
        return held_inside(lambda: torch.ops._C.machete_mm(left, weights))[1]

    blocks, processors = 8192 // 256 * 14336 // 128, 132
    sums = (blocks % processors + processors) * 256 * 128 * 4
    assert sums <= inside(8192) < sums + (2 << 20)
    assert inside(1) == 14336 // 128 * 16 * 128 * 4
    del kept


@on_simulated_gpus(gpu="H100")
def test_choosing_experts_takes_what_their_number_asks_for() -> None:
    _kept = define(
        "_moe_C",
        "topk_softmax(Tensor(a!) weights, Tensor(b!) indices, Tensor(c!) rows, Tensor gating, "
        "bool renormalize, Tensor? bias) -> ()",
        "grouped_topk(Tensor scores, int n_group, int topk_group, int topk, bool renormalize, "
        "float routed_scaling_factor, Tensor bias, int scoring_func) -> (Tensor, Tensor)",
    )

    def inside(experts: int) -> int:
        gating = torch.empty(1000, experts, device="cuda")
        weights = torch.empty(1000, 4, device="cuda")
        chosen = torch.empty(1000, 4, dtype=torch.int32, device="cuda")
        choose = torch.ops._moe_C.topk_softmax
        return held_inside(lambda: choose(weights, chosen, chosen, gating, True, None))[1]

    assert [inside(64), inside(192)] == [0, 0]
    assert inside(60) == -(-1000 * 60 * 4 // 512) * 512
    scores = torch.empty(1000, 256, device="cuda")
    weights, chosen = torch.ops._moe_C.grouped_topk(scores, 8, 4, 8, True, 2.5, scores[0], 0)
    assert (weights.shape, chosen.shape, chosen.dtype) == ((1000, 8), (1000, 8), torch.int32)


COMPILED = """
import torch

def needs_gpu(*arguments, **more):
    raise RuntimeError("cuBLASLt error")

fp8_gemm_nt = m_grouped_fp8_gemm_nt_contiguous = einsum = fp8_mqa_logits = set_pdl = needs_gpu
get_mn_major_tma_aligned_tensor = transform_sf_into_required_layout = needs_gpu
"""


@on_simulated_gpus(gpu="H100")
def test_products_of_deep_gemm_take_a_workspace_once_and_lay_out_scales() -> None:
    import importlib
    import sys
    from pathlib import Path

    package = Path("deep_gemm")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_C.py").write_text(COMPILED)
    sys.path.insert(0, str(Path.cwd()))
    library: Any = importlib.import_module("deep_gemm._C")
    held = torch.cuda.memory_allocated()
    library.set_pdl(True)
    assert torch.cuda.memory_allocated() - held == 32 << 20
    kind = torch.float8_e4m3fn
    left, right = (torch.empty(n, 4096, dtype=kind, device="cuda") for n in (1023, 2048))
    made = torch.empty(1023, 2048, dtype=torch.bfloat16, device="cuda")
    scales = torch.empty(1023, 32, device="cuda")
    blocks = torch.empty(16, 32, device="cuda")
    _, copied = held_inside(lambda: library.fp8_gemm_nt((left, scales), (right, blocks), made))
    assert copied == 1024 * 32 * 4
    laid_out = library.get_mn_major_tma_aligned_tensor(scales)
    assert (laid_out.shape, laid_out.stride()) == ((1023, 32), (1, 1024))
    _, copied = held_inside(lambda: library.fp8_gemm_nt((left, laid_out), (right, blocks), made))
    assert copied == 0
    of_blocks = library.transform_sf_into_required_layout(blocks, 2048, 4096, (1, 128, 128))
    assert of_blocks is blocks
    with pytest.raises(NotImplementedError, match="fp8_mqa_logits"):
        library.fp8_mqa_logits(left)


@on_simulated_gpus(gpu="H100")
def test_products_of_numbers_of_eight_bits_take_half_as_long() -> None:
    made = torch.empty(8192, 8192, dtype=torch.half, device="cuda")

    def time_of(*sizes: float) -> float:
        launch = torch.ops.plimsoll.launch_product
        return milliseconds(lambda: launch([made], list(sizes), torch.half))

    assert time_of(0.5, 8192, 8192, 8192) == pytest.approx(
        time_of(1, 8192, 8192, 8192) / 2, rel=0.1
    )


@on_simulated_gpus(gpu="H100")
def test_kernels_of_flashinfer_write_what_their_caller_made() -> None:
    import importlib
    import sys
    from pathlib import Path

    package = Path("flashinfer/jit")
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    specification = "class JitSpec:\n    def __init__(self, name):\n        self.name = name\n"
    (package / "core.py").write_text(specification)
    sys.path.insert(0, str(Path.cwd()))
    specify: Any = importlib.import_module("flashinfer.jit.core").JitSpec

    products = specify("fp8_blockscale_gemm_90").build_and_load()
    products.set_deepgemm_jit_include_dirs(["."])
    runner = products.init()
    operands = 4 * 4096 + 512 * 4096
    scales = 32 * 32 * 4 + 32 * 4 * 4
    assert runner.get_workspace_size(3, 512, 4096) == operands + scales
    left, right = (torch.empty(n, 4096, dtype=torch.half, device="cuda") for n in (3, 512))
    out = torch.zeros(3, 512, dtype=torch.half, device="cuda")
    runner.run_gemm(left, right, out, None, None)
    assert not torch.ops.plimsoll.is_known(out)

    unknown = specify("delta").build_and_load()
    out, lengths = torch.zeros(8, device="cuda"), torch.arange(8, device="cuda")
    assert unknown.prefill(out, lengths, None, 1.0) is None
    assert not torch.ops.plimsoll.is_known(out)
    assert lengths.tolist() == list(range(8))
    with pytest.raises(NotImplementedError, match="plan of FlashInfer's module delta"):
        unknown.plan(lengths)
