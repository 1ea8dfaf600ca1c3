"""Tests third-party operations: fake implementations, CUDA kernels, and users' declarations."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll.base.errors import InputError
from plimsoll.torch.building.compiler import build
from plimsoll.torch.simulated.library import SIMULATED_GPU
from tests.simulated import on_simulated_gpus, output_of, simulate

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.long  # the fixture `extension` compiles a C++ library


def register_native(library: str, name: str) -> Any:
    """Registers a CUDA kernel as a C++ library would; the kernel must never run."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a kernel ran on memory that is not there")

    made = torch._C._dispatch_library("IMPL", library, "CUDA", "kernels.cu", 1)
    made.impl(name, "CUDA", refuse)
    return made


def define_selection() -> Any:
    """Defines an operation like torchvision's nms. The data decide how many rows it selects."""
    library = torch.library.Library("mylib", "FRAGMENT")
    library.define("select(Tensor rows) -> Tensor")

    @torch.library.register_fake("mylib::select", lib=library)  # type: ignore[untyped-decorator]
    def fake(rows: Any) -> Any:
        count = torch.library.get_ctx().new_dynamic_size(max=rows.size(0))
        return rows.new_empty(count, dtype=torch.long)

    return library, register_native("mylib", "select")


@on_simulated_gpus()
def test_a_size_that_hangs_on_data_is_a_number_within_its_bounds() -> None:
    _kept = define_selection()
    rows = torch.randn(1000, 4, device="cuda")
    # Whenever a library is loaded, plimsoll looks for new operations. Any library would do.
    torch.ops.load_library(torch._C.__file__)
    assert torch.ops.mylib.select(rows).shape == (500,)


@on_simulated_gpus("--unknown", "most")
def test_it_is_the_bound_where_most_is_asked_for() -> None:
    _kept = define_selection()
    rows = torch.randn(1000, 4, device="cuda")
    torch.ops.load_library(torch._C.__file__)
    assert torch.ops.mylib.select(rows).shape == (1000,)


@on_simulated_gpus()
def test_an_operation_of_a_library_may_take_a_tensor_on_the_host() -> None:
    library = torch.library.Library("mylib", "FRAGMENT")
    library.define("scale(Tensor rows, Tensor factors) -> Tensor")

    @torch.library.register_fake("mylib::scale", lib=library)  # type: ignore[untyped-decorator]
    def fake(rows: Any, _: Any) -> Any:
        return torch.empty_like(rows)

    _kept = register_native("mylib", "scale")
    torch.ops.load_library(torch._C.__file__)
    rows = torch.ones(4, 2, device="cuda")
    assert torch.ops.mylib.scale(rows, torch.ones(2)).device == rows.device


SELECTING = """
import torch
library = torch.library.Library("mylib", "FRAGMENT")
library.define("select(Tensor rows) -> Tensor")

@torch.library.register_fake("mylib::select", lib=library)
def fake(rows):
    return rows.new_empty(torch.library.get_ctx().new_dynamic_size(max=rows.size(0)), 1 << 20)

rows = torch.randn(64, 4, device="cuda")
print(torch.ops.mylib.select(rows).shape)
"""


def test_a_prediction_says_the_range_of_such_a_size(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SELECTING)
    found = plimsoll.predict(script, gpu="H200")
    assert found.peak_allocated_range_bytes is not None
    least, most = found.peak_allocated_range_bytes
    assert least < 2 << 20
    assert most > 64 * 4 << 20
    assert least < found.peak_allocated_bytes < most


@on_simulated_gpus()
def test_what_the_user_says_of_an_operation_holds() -> None:
    library = torch.library.Library("mylib", "FRAGMENT")
    plimsoll.simulated_operation(
        "mylib::pairs",
        shapes=lambda points, _: points.new_empty(points.size(0), 2),
        workspace=lambda points, _: 4 * points.size(0) ** 2,
    )
    library.define("pairs(Tensor points, float radius) -> Tensor")
    _kernel = register_native("mylib", "pairs")
    points = torch.randn(1024, 3, device="cuda")
    torch.ops.load_library(torch._C.__file__)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    pairs = torch.ops.mylib.pairs(points, 0.5)
    assert pairs.shape == (1024, 2)
    assert torch.cuda.memory_allocated() - held == 1024 * 2 * 4
    assert torch.cuda.max_memory_allocated() - held == 1024 * 2 * 4 + 4 * 1024**2


@on_simulated_gpus()
def test_sizes_are_enough_and_several_results_may_be_said() -> None:
    library = torch.library.Library("mylib", "FRAGMENT")
    library.define("split(Tensor x) -> (Tensor, Tensor)")
    library.define("grow(Tensor(a!) x, int size) -> Tensor(a!)")
    plimsoll.simulated_operation("mylib::split", shapes=lambda x: [(3, 4), x.new_empty(7)])
    plimsoll.simulated_operation("mylib::grow", workspace=lambda _, size: size)
    x = torch.ones(10, device="cuda", dtype=torch.bfloat16)
    one, two = torch.ops.mylib.split(x)
    assert (one.shape, two.shape, one.dtype) == ((3, 4), (7,), torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    assert torch.ops.mylib.grow(x, 1 << 20) is x
    assert torch.cuda.max_memory_allocated() - held == 1 << 20


def define_boxes() -> Any:
    """Defines torchvision's nms without a fake implementation."""
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    kernel = register_native("torchvision", "nms")
    torch.ops.load_library(torch._C.__file__)
    return library, kernel


@on_simulated_gpus()
def test_boxes_that_overlap_take_a_bit_for_each_pair_of_them() -> None:
    _kept = define_boxes()
    boxes, scores = torch.randn(6400, 4, device="cuda"), torch.randn(6400, device="cuda")
    for written in (boxes, scores):
        torch.ops.plimsoll.launch([written], 1.0, [], [], torch.float32)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
    assert 2800 < kept.size(0) < 3600  # about half of the boxes
    pairs = 6400 * (6400 // 64) * 8
    assert pairs < torch.cuda.max_memory_allocated() - held < 1.2 * pairs


@on_simulated_gpus()
def test_few_numbers_are_others_where_nobody_knows() -> None:
    matches = torch.zeros(2000, dtype=torch.int64, device="cuda")
    torch.ops.plimsoll.launch([matches], 1.0, [], [], matches.dtype)
    torch.ops.plimsoll.mostly(matches, -1, 0.995)
    assert (matches == -1).nonzero().size(0) == 1990
    assert (matches >= 0).nonzero().size(0) <= 10


UNKNOWN = """
import torch
library = torch.library.Library("mylib", "FRAGMENT")
library.define("mystery(Tensor x) -> Tensor")
kernel = torch._C._dispatch_library("IMPL", "mylib", "CUDA", "kernels.cu", 1)
kernel.impl("mystery", "CUDA", lambda x: x)
x = torch.ones(4, device="cuda")
torch.ops.mylib.mystery(x)
"""


def test_an_operation_that_nothing_knows_is_named_in_one_line_with_what_helps(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNKNOWN)
    with pytest.raises(plimsoll.ScriptError) as raised:
        plimsoll.predict(script, gpu="H200")
    first = str(raised.value).splitlines()[0]
    for part in ("mylib::mystery", "the library mylib", "script.py:8", "simulated_operation"):
        assert part in first


def test_an_operation_has_a_library_in_its_name() -> None:
    with pytest.raises(InputError, match='"library::operation"'):
        plimsoll.simulated_operation("pairs")


def test_without_simulated_gpus_nothing_happens() -> None:
    plimsoll.simulated_operation("mylib::pairs", shapes=lambda x: x)


EXTENSION = """
#include <torch/library.h>
#include <ATen/ATen.h>
namespace c10::cuda { extern int missing_state; int device_count(); }
extern "C" int cudaDeviceSynchronize();
static at::Tensor on_gpu(const at::Tensor& x) {
  cudaDeviceSynchronize();
  return at::empty({c10::cuda::device_count() + c10::cuda::missing_state}, x.options());
}
static at::Tensor on_host(const at::Tensor& x) { return x + 1; }
static at::Tensor shape(const at::Tensor& x) { return at::empty({5}, x.options()); }
static int64_t devices() { return c10::cuda::device_count(); }
TORCH_LIBRARY(compiled, m) {
  m.def("five(Tensor x) -> Tensor");
  m.def("devices() -> int", devices);
}
TORCH_LIBRARY_IMPL(compiled, CUDA, m) { m.impl("five", on_gpu); }
TORCH_LIBRARY_IMPL(compiled, CPU, m) { m.impl("five", on_host); }
TORCH_LIBRARY_IMPL(compiled, Meta, m) { m.impl("five", shape); }
"""
RUNTIME = 'extern "C" int cudaDeviceSynchronize() { return 0; }'


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a CUDA extension. Returns its path.

    The extension is linked to two stand-ins for CUDA libraries. The stand-ins are deleted after the
    build, so the dynamic linker does not find them when a test loads the extension.
    """
    folder = tmp_path_factory.mktemp("extension")
    home = Path(torch.__file__).parent
    (folder / "extension.cpp").write_text(EXTENSION)
    (folder / "runtime.cpp").write_text(RUNTIME)
    (folder / "runtime.map").write_text("libcudart.so.99 { global: *; };")
    needed = {
        "libcudart.so.99": ["runtime.cpp", f"-Wl,--version-script={folder / 'runtime.map'}"],
        "libc10_cuda_test.so": ["-x", "c++", os.devnull],
    }
    for name, source in needed.items():
        command = ["g++", "-shared", "-fPIC", *source, f"-Wl,-soname,{name}", "-o", name]
        subprocess.run(command, cwd=folder, check=True)
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-O0", "-w", f"-I{home / 'include'}"]
    command += ["extension.cpp", "-Wl,--no-as-needed", *needed, f"-L{home / 'lib'}"]
    command += ["-ltorch", "-ltorch_cpu", "-lc10", "-o", "libextension.so"]
    subprocess.run(command, cwd=folder, check=True)
    for name in needed:
        (folder / name).unlink()
    return folder / "libextension.so"


def test_a_library_compiled_for_cuda_is_loaded_where_there_is_no_cuda(extension: Path) -> None:
    with pytest.raises(OSError, match="cannot open shared object file"):
        ctypes.CDLL(str(extension))
    program = f"""
import torch
torch.ops.load_library({str(extension)!r})
print(torch.ops.compiled.five(torch.ones(3, device="cuda")).shape)
print(torch.ops.compiled.five(torch.ones(3)).tolist())
"""
    assert output_of(program).splitlines() == ["torch.Size([5])", "[2.0, 2.0, 2.0]"]


def test_a_prediction_keeps_what_stands_in_for_cuda_and_lists_no_write_of_it(
    extension: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (cache / "plimsoll").mkdir(mode=0o700, parents=True)
    shutil.copy2(build(SIMULATED_GPU), cache / "plimsoll")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    script = tmp_path / "script.py"
    script.write_text(
        f"import torch\ntorch.ops.load_library({str(extension)!r})\n"
        "torch.ops.compiled.five(torch.ones(3, device='cuda'))\n"
    )
    found = plimsoll.predict(script, gpu="H200")
    assert found.written == []
    assert len(list(cache.glob("plimsoll/compiled/stand-in-*.so"))) == 2


def test_what_it_calls_of_cuda_itself_says_that_there_is_no_gpu(extension: Path) -> None:
    program = f"""
import torch
torch.ops.load_library({str(extension)!r})
torch.ops.compiled.devices()
"""
    done = simulate(program)
    assert done.returncode == 1
    assert "called c10::cuda::device_count(), which needs a GPU" in done.stderr


CUDA_EXTENSION = """
import torch
from torch.utils.cpp_extension import load_inline
def build():
    return load_inline("twice", cpp_sources="torch::Tensor twice(torch::Tensor x);",
                       cuda_sources="__global__ void k(float* p) {}", functions=["twice"])
"""


def test_an_extension_with_cuda_sources_is_refused_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{CUDA_EXTENSION}build()\n")
    with pytest.raises(plimsoll.ScriptError) as raised:
        plimsoll.predict(script, gpu="H200")
    assert len(str(raised.value).splitlines()) == 1
    for part in ("CUDA extension twice", "plimsoll.simulated_operation", "script.py:5"):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        "extension.load('fused', ['fused.cpp', 'fused.cu'])",
        "extension.load(name='fused', sources='fused.cu')",
        "extension.load('fused', ['fused.cpp'], with_cuda=True)",
        "setup(name='fused', ext_modules=[extension.CppExtension('fused', ['fused.cu'])], "
        "cmdclass={'build_ext': extension.BuildExtension}, script_args=['build_ext'])",
    ],
)
def test_a_program_goes_on_without_an_extension_that_is_refused(call: str) -> None:
    program = f"""
import torch
from setuptools import setup
from torch.utils import cpp_extension as extension
try:
    {call}
except RuntimeError as error:
    print(error)
"""
    assert output_of(program).splitlines()[-1].startswith("plimsoll does not simulate the CUDA ext")


@on_simulated_gpus()
def test_an_operation_that_the_user_defines_takes_the_place_of_an_extension() -> None:
    torch.library.define("twice::twice", "(Tensor x) -> Tensor")
    plimsoll.simulated_operation("twice::twice", shapes=lambda x: x.new_empty(x.shape))
    x = torch.ones(1 << 20, device="cuda")
    held = torch.cuda.memory_allocated()
    result = torch.ops.twice.twice(x)
    assert torch.cuda.memory_allocated() - held == result.nbytes == 4 << 20


def test_an_extension_in_cpp_alone_is_compiled_and_runs() -> None:
    program = """
import torch
from torch.utils.cpp_extension import load_inline
source = "torch::Tensor thrice(torch::Tensor x) { return x * 3; }"
module = load_inline("thrice", source, functions=["thrice"], build_directory=".")
print(module.thrice(torch.ones(2)).tolist(), module.thrice(torch.ones(2, device="cuda")).shape)
"""
    assert output_of(program).splitlines()[-1] == "[3.0, 3.0] torch.Size([2])"
