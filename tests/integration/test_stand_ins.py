"""Tests that plimsoll's stand-ins for packages take as much memory as the packages on a GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from tests.simulated import on_simulated_gpus, output_of, simulate

torch = pytest.importorskip("torch")

MIB = 1 << 20


def peak_of(function: Any) -> int:
    """Returns the peak of live bytes during a call, minus the bytes that were live before it."""
    held: int = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    peak: int = torch.cuda.max_memory_allocated()
    return peak - held


def half(*shape: int, needs_gradient: bool = True) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=needs_gradient)


@pytest.mark.long
@on_simulated_gpus()
def test_flash_attention_keeps_its_result_and_a_logarithm_a_row() -> None:
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    q, k, v = (half(4, 1024, 8, 64) for _ in range(3))
    held = torch.cuda.memory_allocated()
    out = flash_attn_func(q, k, v, causal=True)
    assert out.shape == q.shape
    assert torch.cuda.memory_allocated() - held == 4 * MIB + 4 * 8 * 1024 * 4 + 512
    gradient = torch.ones_like(out)
    # The backward pass allocates three gradients, one sum per row, and the query's gradient once
    # more in single precision.
    assert peak_of(lambda: out.backward(gradient)) == 3 * 4 * MIB + 4 * 8 * 1024 * 4 + 8 * MIB
    assert q.grad.shape == q.shape


@on_simulated_gpus()
def test_grouped_heads_are_expanded_in_the_backward_pass() -> None:
    from flash_attn import flash_attn_func

    q, k, v = half(2, 256, 8, 64), half(2, 256, 2, 64), half(2, 256, 2, 64)
    out = flash_attn_func(q, k, v)
    gradient = torch.ones_like(out)
    size = 2 * 256 * 8 * 64 * 2
    taken = peak_of(lambda: out.backward(gradient))
    assert taken == size + 2 * size // 4 + 2 * 8 * 256 * 4 + 2 * size + 2 * size
    assert k.grad.shape == k.shape


@on_simulated_gpus()
def test_sequences_of_several_lengths_are_unpadded_and_padded_again() -> None:
    from flash_attn import flash_attn_varlen_qkvpacked_func
    from flash_attn.bert_padding import (  # type: ignore[import-not-found]
        pad_input,
        unpad_input,
    )

    mask = torch.arange(128, device="cuda") < torch.tensor([[128], [40]], device="cuda")
    x = half(2, 128, 3 * 4 * 32)
    flat, indices, starts, longest, used = unpad_input(x, mask)
    assert flat.shape == (168, 384)
    assert (longest, starts.tolist(), used.tolist()) == (128, [0, 128, 168], [128, 40])
    out = flash_attn_varlen_qkvpacked_func(flat.view(168, 3, 4, 32), starts, longest)
    whole = pad_input(out.flatten(1), indices, 2, 128)
    assert whole.shape == (2, 128, 128)
    whole.sum().backward()
    assert x.grad.shape == x.shape


@on_simulated_gpus()
def test_one_query_row_splits_the_keys_of_a_cache() -> None:
    from flash_attn import flash_attn_with_kvcache

    q, cache = half(1, 1, 8, 64), half(1, 65536, 8, 64, needs_gradient=False)
    with torch.no_grad():
        taken = peak_of(
            lambda: flash_attn_with_kvcache(q, cache, cache, cache_seqlens=100, causal=True)
        )
    # The kernel splits the cache. It allocates a result and log-sum-exps for each split.
    assert taken > 10 * q.nbytes
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        flash_attn_with_kvcache(q.float(), cache, cache)


@on_simulated_gpus()
def test_a_fused_loss_may_write_its_gradient_over_the_logits() -> None:
    from flash_attn.layers.rotary import (  # type: ignore[import-not-found]
        apply_rotary_emb,
    )
    from flash_attn.losses.cross_entropy import (  # type: ignore[import-not-found]
        CrossEntropyLoss,
    )

    angles = torch.randn(128, 16, device="cuda")
    turned = apply_rotary_emb(half(2, 128, 4, 32), angles, angles)
    assert turned.shape == (2, 128, 4, 32)
    labels = torch.zeros(1024, dtype=torch.int64, device="cuda")
    for inplace in (True, False):
        logits = torch.randn(1024, 5000, device="cuda", requires_grad=True) * 2
        loss = CrossEntropyLoss(inplace_backward=inplace)(logits, labels)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient.shape == logits.shape
        assert (gradient.data_ptr() == logits.data_ptr()) is inplace


@pytest.mark.long
@on_simulated_gpus(gpu="H100")
def test_flash_attention_3_keeps_no_random_state() -> None:
    from flash_attn_interface import flash_attn_func  # type: ignore[import-not-found]

    q, k, v = (half(4, 1024, 8, 64) for _ in range(3))
    held = torch.cuda.memory_allocated()
    out = flash_attn_func(q, k, v)
    assert torch.cuda.memory_allocated() - held == 4 * MIB + 4 * 8 * 1024 * 4
    out.sum().backward()
    assert v.grad.shape == v.shape


@on_simulated_gpus(gpu="H100")
def test_flash_attention_3_splits_a_long_cache_of_keys() -> None:
    from flash_attn_interface import flash_attn_with_kvcache

    q, keys, values = half(1, 1, 32, 128), half(64, 128, 8, 128), half(64, 128, 8, 128)
    pages = torch.arange(64, device="cuda", dtype=torch.int32).view(1, 64)

    def attend(**named: Any) -> Any:
        with torch.no_grad():
            return flash_attn_with_kvcache(
                q, keys, values, cache_seqlens=8192, page_table=pages, causal=True, **named
            )

    # The call allocates four tensors: the cache's length, the output, the log-sum-exps and the
    # schedule. With several splits, each split also has its own output and log-sum-exps.
    alone = 512 + 32 * 128 * 2 + 512 + 512
    assert peak_of(lambda: attend(num_splits=1)) == alone
    # The kernel uses 15 splits: with 8 key heads, they keep 120 of 132 multiprocessors busy.
    parts = 15 * 32 * 128 * 4 + 2048
    assert peak_of(attend) == alone + parts


@on_simulated_gpus()
def test_attention_of_xformers_follows_its_masks() -> None:
    import xformers.ops as xops  # type: ignore[import-not-found]
    from xformers.ops.fmha.attn_bias import (  # type: ignore[import-not-found]
        BlockDiagonalMask,
    )

    q, k, v = (half(2, 512, 4, 64) for _ in range(3))
    xops.memory_efficient_attention(
        q, k, v, attn_bias=xops.LowerTriangularMask(), p=0.1
    ).sum().backward()
    mask, joint = BlockDiagonalMask.from_tensor_list([half(1, n, 4, 64) for n in (100, 30, 7)])
    parts = mask.split(xops.memory_efficient_attention(joint, joint, joint, attn_bias=mask))
    assert [part.shape[1] for part in parts] == [100, 30, 7]
    whole = torch.randn(2, 64, 4, 32, device="cuda", requires_grad=True)
    plain = xops.memory_efficient_attention(whole, whole, whole)
    scores = torch.einsum("bqhd,bkhd->bhqk", whole, whole) * 32**-0.5
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), whole)
    assert torch.allclose(plain, expected, atol=1e-5)
    layer = xops.SwiGLU(64, 128).cuda()
    assert layer(torch.randn(3, 64, device="cuda")).shape == (3, 64)


@on_simulated_gpus()
def test_mamba_keeps_the_states_between_chunks() -> None:
    from causal_conv1d import causal_conv1d_fn  # type: ignore[import-not-found]
    from mamba_ssm import Mamba  # type: ignore[import-not-found]
    from mamba_ssm.ops.selective_scan_interface import (  # type: ignore[import-not-found]
        selective_scan_fn,
    )

    u = torch.randn(2, 256, 4096, device="cuda", requires_grad=True)
    b = torch.randn(2, 16, 4096, device="cuda")
    held = torch.cuda.memory_allocated()
    out = selective_scan_fn(u, u, torch.randn(256, 16, device="cuda"), b, b)
    # Autograd keeps three tensors: the output, the scan's states, and the random matrix, which was
    # created for this call. Each channel has 2 chunks of 16 states. A state takes two numbers.
    assert torch.cuda.memory_allocated() - held == 8 * MIB + 2 * 256 * 2 * 32 * 4 + 256 * 16 * 4
    out.sum().backward()
    weight = torch.randn(256, 4, device="cuda", requires_grad=True)
    causal_conv1d_fn(u, weight, activation="silu").sum().backward()
    assert weight.grad.shape == weight.shape

    layer = Mamba(64, device="cuda")
    x = torch.randn(2, 96, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        layer(x).sum().backward()
    assert all(each.grad is not None for each in (x, *layer.parameters()))


@on_simulated_gpus()
def test_a_gated_norm_of_mamba_is_a_class_and_keeps_a_number_a_row() -> None:
    from mamba_ssm.ops.triton.layernorm_gated import (  # type: ignore[import-not-found]
        LayerNorm,
        RMSNorm,
    )

    class Norm(RMSNorm):  # type: ignore[misc]
        pass

    x, z = (half(4, 1024, 512) for _ in range(2))
    norm = Norm(512, group_size=128, device="cuda", dtype=torch.bfloat16)
    held = torch.cuda.memory_allocated()
    out = norm(x, z)
    # The layer keeps the output. For each of a row's 4 groups, it also keeps the reciprocal of the
    # root mean square.
    assert torch.cuda.memory_allocated() - held == 4 * MIB + 4 * 4096 * 4
    # An A100 has 108 multiprocessors, each with 4 blocks. The 4 groups share these blocks, so there
    # are 108 rows of sums.
    sums = 108 * 512 * 4
    gradient = torch.ones_like(out)
    taken = peak_of(lambda: out.backward(gradient))
    assert 2 * 4 * MIB + sums <= taken <= 2 * 4 * MIB + sums + 8192
    assert norm.weight.grad.shape == (512,)
    assert x.grad.shape == z.grad.shape == x.shape
    layer = LayerNorm(512, device="cuda")
    layer(x.float()).sum().backward()
    assert layer.bias.grad.shape == (512,)


def test_an_import_of_what_a_stand_in_lacks_is_one_line_with_what_helps() -> None:
    for program in (
        "from mamba_ssm import Mamba2",
        "from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined",
        "import flash_attn.ops.fused_dense",
        "from causal_conv1d.cpp_functions import no_such_function",
    ):
        done = simulate(f"import torch\n{program}\n")
        last = done.stderr.splitlines()[-1]
        library = program.split()[1].partition(".")[0]
        assert f"plimsoll's stand-in for {library} has no {library}." in last
        assert "itself, whose Python part needs no GPU (" in last
        assert done.returncode == 1


LACKS_A_NAME = {
    "one try": """
try:
    from flash_attn import flash_attn_func
    from flash_attn.ops.fused_dense import FusedDense
    FOUND = True
except ImportError:
    FOUND = False
""",
    "its else": """
try:
    import flash_attn
except ModuleNotFoundError:
    FOUND = False
else:
    from flash_attn.ops.fused_dense import FusedDense
    FOUND = True
""",
    "any error": """
try:
    import flash_attn as fa
    FOUND = True
except:
    FOUND = False
def use():
    return fa.modules.mha.MHA(64)
""",
    "a function": """
def find():
    try:
        from flash_attn.modules import mha
    except (AttributeError, Exception):
        return False
    return True
FOUND = find()
""",
    "suppress": """
import contextlib
FOUND = False
with contextlib.suppress(ImportError):
    from flash_attn.ops import fused_dense
    FOUND = True
""",
    "a question": """
import importlib.util
FOUND = importlib.util.find_spec("flash_attn") is not None
if FOUND:
    from flash_attn.modules.mha import MHA
""",
    "a version": """
import importlib.metadata
try:
    importlib.metadata.version("flash_attn")
    FOUND = True
except importlib.metadata.PackageNotFoundError:
    FOUND = False
def use():
    from flash_attn.modules.mha import MHA
""",
}
SEEN = """
import importlib.metadata, importlib.util, sys, torch
names = [each.metadata["Name"] for each in importlib.metadata.distributions()]
print(FOUND, "flash_attn" in sys.modules, "flash-attn" in names)
"""


@pytest.mark.parametrize("way", LACKS_A_NAME)
def test_code_that_does_without_a_package_never_gets_half_of_it(way: str) -> None:
    assert output_of(LACKS_A_NAME[way] + SEEN).strip() == "False False False"


@pytest.mark.parametrize("way", LACKS_A_NAME)
def test_the_same_code_gets_a_stand_in_that_is_whole(way: str) -> None:
    program = LACKS_A_NAME[way]
    for lacking, there in (
        ("flash_attn.ops.fused_dense import FusedDense", "flash_attn.losses import cross_entropy"),
        ("flash_attn.ops import fused_dense", "flash_attn.ops import triton"),
        ("flash_attn.modules.mha import MHA", "flash_attn.bert_padding import pad_input"),
        ("flash_attn.modules import mha", "flash_attn.layers import rotary"),
        ("fa.modules.mha.MHA(64)", "fa.flash_attn_func.__name__"),
    ):
        program = program.replace(lacking, there)
    found, _, has_version = output_of(program + SEEN).split()
    assert (found, has_version) == ("True", "True")


def test_a_question_takes_in_the_other_files_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "attention.py").write_text("from flash_attn.modules.mha import MHA\n")
    (tmp_path / "script.py").write_text(
        "import importlib.util, torch\nprint(importlib.util.find_spec('flash_attn'))\n"
        "if importlib.util.find_spec('flash_attn'):\n    import attention\n"
    )
    assert output_of(tmp_path / "script.py", folder=tmp_path).strip() == "None"


@pytest.mark.long
def test_only_a_package_whose_kernel_was_called_is_assumed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    imports = "import torch\nfrom causal_conv1d import causal_conv1d_fn\nimport flash_attn\n"
    call = (
        "x = torch.randn(2, 256, 512, device='cuda')\n"
        "causal_conv1d_fn(x, torch.randn(256, 4, device='cuda'))\n"
    )
    for lines, assumed in ((imports, set()), (imports + call, {"causal_conv1d"})):
        script.write_text(lines + "torch.ones(4, device='cuda')\n")
        prediction = plimsoll.predict(script, gpu="H200")
        told = {each.operation for each in prediction.assumptions}
        assert told & {"causal_conv1d", "flash_attn"} == assumed


def library_that_looks(folder: Path) -> str:
    """Installs a library that checks whether flash-attn is installed. Returns its folder."""
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "looking.py").write_text(
        "import importlib.metadata\n"
        "import importlib.util\n\n\n"
        "def looks():\n"
        '    if importlib.util.find_spec("flash_attn") is None:\n'
        '        return "missing"\n'
        '    names = importlib.metadata.packages_distributions()["flash_attn"]\n'
        '    return names, importlib.metadata.version("flash-attn")\n\n\n'
        "SEEN = looks()\n"
    )
    return str(installed)


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("import looking\nprint(looking.SEEN)", "missing"),
        ("import looking\nprint(looking.SEEN)\nimport flash_attn", "(['flash-attn'], '2.8.3')"),
        (
            "import looking\nprint(looking.SEEN)\nattention = 'flash_attention_2'",
            "(['flash-attn'], '2.8.3')",
        ),
    ],
)
def test_a_library_sees_what_the_script_asks_for(tmp_path: Path, script: str, seen: str) -> None:
    installed = library_that_looks(tmp_path)
    program = f"import sys\nsys.path.insert(0, {installed!r})\n{script}\n"
    assert output_of(program).strip() == seen


def test_an_installed_package_is_used_with_kernels_that_only_account(tmp_path: Path) -> None:
    (tmp_path / "flash_attn.py").write_text(
        "import flash_attn_2_cuda\nOWN = flash_attn_2_cuda.__file__\n"
    )
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, flash_attn\nprint(flash_attn.__file__, flash_attn.OWN)\n"
    )
    package, kernels = output_of(program).split()
    assert package == str(tmp_path / "flash_attn.py")
    assert "stand_ins" in kernels


def test_what_nobody_asked_for_stays_missing() -> None:
    done = simulate("import torch\nimport flash_attn_2_cuda\n")
    assert "No module named 'flash_attn_2_cuda'" in done.stderr


@pytest.mark.long
@on_simulated_gpus()
def test_deepspeed_compiles_nothing_for_a_gpu() -> None:
    package = Path("deepspeed/ops/op_builder")
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "builder.py").write_text(
        "class OpBuilder:\n"
        "    def __init__(self, name, *sources):\n"
        "        self.name, self.files = name, sources\n\n"
        "    def sources(self):\n"
        "        return list(self.files)\n\n"
        "    def load(self, verbose=False):\n"
        "        return 'compiled'\n"
    )
    sys.path.insert(0, str(Path.cwd()))
    builder = importlib.import_module("deepspeed.ops.op_builder.builder").OpBuilder

    weights = [torch.zeros(1000, device="cuda") for _ in range(4)]
    kernels = builder("fused_adam", "adam.cu").load()
    lists = [[weight] for weight in weights]
    taken = peak_of(lambda: kernels.multi_tensor_adam(2048, None, lists, 1e-3, 0.9, 0.999))
    assert taken == 0
    assert builder("utils", "flatten.cpp").load() == "compiled"
    with pytest.raises(NotImplementedError, match=r"extension deepspeed.quantizer \(quantize.cu"):
        builder("quantizer", "quantize.cu").load()

    ours, theirs = (torch.full((8,), 0.5, requires_grad=True) for _ in range(2))
    averages, squares = torch.zeros(8), torch.zeros(8)
    adam = builder("cpu_adam", "adam.cpp").load()
    adam.create_adam(0, 0.1, 0.9, 0.999, 1e-8, 0.01, True, False)
    optimizer = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01)
    for step in (1, 2):
        gradient = torch.arange(8.0) * step
        theirs.grad = gradient.clone()
        optimizer.step()
        numbers = (0.1, 0.9, 0.999, 1e-8, 0.01, True)
        adam.adam_update(0, step, *numbers, ours.data, gradient, averages, squares)
    assert torch.allclose(ours, theirs)
