"""Tests predictions of SGLang. A small package with the same names stands in for SGLang."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_plimsoll
from tests.simulated import on_simulated_gpus, running_simulation

torch = pytest.importorskip("torch")

GiB = 1 << 30

ENGINE = {
    "__init__.py": '__version__ = "9.9"\n',
    "srt/runtime_context.py": """
from types import SimpleNamespace

def get_schedule():
    return SimpleNamespace(chunked_prefill_size=2048, mem_fraction_static=0.5)

def get_model():
    return SimpleNamespace(load_format="auto")
""",
    "srt/model_executor/model_runner_components/load_model_utils.py": """
def build_load_config(*, load_format=None):
    return load_format
""",
    "srt/mem_cache/kv_cache_configurator.py": """
class KVCacheConfigurator:
    def configure(self, *, gigabytes):
        if gigabytes <= 0:
            raise ValueError("Loaded weights leave no GPU memory")
        return gigabytes
""",
    "srt/model_executor/model_runner.py": """
from types import SimpleNamespace
import torch
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from sglang.srt.model_executor.model_runner_components.load_model_utils import build_load_config

def take(gigabytes):
    return torch.empty(gigabytes << 30, dtype=torch.uint8, device="cuda")

class ModelRunner:
    gpu_id = 0
    model_config = SimpleNamespace(context_len=4096)

    def load_model(self):
        assert build_load_config() == "dummy"
        self.weights = take(2)
        self.weight_load_mem_usage = 2.0

    def alloc_memory_pool(self, gigabytes):
        self.cache = take(KVCacheConfigurator().configure(gigabytes=gigabytes))
        self.max_total_num_tokens = gigabytes * 8192
        self.token_to_kv_pool = SimpleNamespace(mem_usage=float(gigabytes))

    def init_attention_backends(self):
        pass

    def init_cuda_graphs(self, gigabytes):
        self.graphs = take(gigabytes)
        self.decode_cuda_graph_capture_bs = [1, 2]
        self.graph_memory_usage = {"decode": float(gigabytes)}
""",
    "srt/managers/scheduler.py": """
from sglang.srt.model_executor.model_runner import ModelRunner, take

class Scheduler:
    max_running_requests = 64
    startup_available_gpu_memory_gb = 3.0

    def init_model_worker(self, cache, graphs):
        self.runner = ModelRunner()
        self.runner.load_model()
        self.runner.alloc_memory_pool(cache)
        self.runner.init_attention_backends()
        self.runner.init_cuda_graphs(graphs)

    def run_batch(self, gigabytes):
        take(gigabytes)
""",
}
PROGRAM = """
import sys
from sglang.srt.managers.scheduler import Scheduler
cache, graphs, step = map(int, sys.argv[1:])
scheduler = Scheduler()
scheduler.init_model_worker(cache, graphs)
scheduler.run_batch(step)
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def predicted(folder: Path, *sizes: int) -> tuple[int, dict[str, Any], str]:
    """Predicts on an L4 whether a small engine fits.

    Args:
        folder: The folder for the engine's files.
        sizes: How many GiB the engine's cache, its CUDA graphs and one batch take, in this order.

    Returns:
        The exit status, the answer of `--json`, and the text of the answer without `--json`.
    """
    write(folder / "sglang", ENGINE)
    script = folder / "engine.py"
    script.write_text(PROGRAM)
    done = [
        run_plimsoll("predict", "--gpu", "L4", script, *more, "--", *sizes)
        for more in (["--json"], [])
    ]
    return done[0].returncode, json.loads(done[0].stdout.splitlines()[-1]), done[1].stdout


def test_an_engine_says_its_figures_in_its_own_words(tmp_path: Path) -> None:
    status, found, text = predicted(tmp_path, 8, 1, 1)
    assert status == 0
    use = found["serving"]
    assert (use["engine"], use["stage"], use["failed_in"]) == ("SGLang 9.9", "load", None)
    sizes = [use[f"{part}_bytes"] for part in ("weights", "kv_cache", "graph", "available")]
    assert sizes == [2 * GiB, 8 * GiB, GiB, 3 * GiB]
    assert (use["kv_tokens"], use["max_num_seqs"], use["graph_sizes"]) == (65536, 64, 2)
    assert use["max_num_batched_tokens"] == 2048
    assert "all that the weights leave of 0.5 of the card (mem_fraction_static)" in text
    assert "3.00 GiB  once it is ready (available_gpu_mem)" in text
    assert "16.0 of 4,096 tokens, or up to 64 shorter ones (max_running_requests)" in text
    assert "plimsoll made up the weights" in text


@pytest.mark.parametrize(
    ("sizes", "stage", "words"),
    [
        ((30, 1, 1), "kv_cache", "while it makes the KV cache"),
        ((8, 30, 1), "capture", "while it captures CUDA graphs"),
        ((8, 1, 30), "load", "under load"),
    ],
)
def test_an_engine_runs_out_in_a_stage(
    tmp_path: Path, sizes: tuple[int, ...], stage: str, words: str
) -> None:
    status, found, text = predicted(tmp_path, *sizes)
    assert status == 1
    assert found["serving"]["failed_in"] == stage
    assert f"SGLang 9.9 runs out of memory {words}" in text


def test_an_engine_refuses_to_start_in_its_own_words(tmp_path: Path) -> None:
    status, found, text = predicted(tmp_path, 0, 1, 1)
    assert status == 1
    assert found["serving"]["refusal"] == "Loaded weights leave no GPU memory"
    assert "SGLang 9.9 refuses to start" in text


LOADER = """
def load_jit(*names, cpp_files=None, cuda_files=None):
    if cuda_files:
        raise RuntimeError("a compiler was asked for")
    return "compiled"
"""


@on_simulated_gpus(gpu="H100")
def test_kernels_in_cuda_are_not_compiled_and_others_are() -> None:
    write(Path("sglang"), {"kernels/jit/utils/compile/loader.py": LOADER})
    sys.path.insert(0, str(Path.cwd()))
    loader = importlib.import_module("sglang.kernels.jit.utils.compile.loader")
    assert loader.load_jit("tree", cpp_files=["tree.cpp"]) == "compiled"
    kernels = loader.load_jit("rope", True, 64, cuda_files=["rope.cuh"])
    query = torch.ones(1 << 20, device="cuda")
    held = torch.cuda.memory_allocated()
    kernels.run_rope(query, query, 64)
    assert torch.cuda.max_memory_allocated() == held


SCHEDULE = (
    "get_scheduler_metadata(int batch, int rows, int key_rows, int heads, int key_heads, "
    "int width, int value_width, ScalarType dtype, Tensor used, Tensor? starts, Tensor? key_starts,"
    " Tensor? new_starts, Tensor? used_q, Tensor? left, int? page, int new, bool causal, "
    "int window_left, int window_right, int chunk, bool softcap, int splits, bool? pack, "
    "int margin) -> Tensor"
)


@on_simulated_gpus(gpu="H100")
def test_attention_with_a_length_of_chunks_takes_what_it_takes_without() -> None:
    fragment = torch.library.Library("sgl_kernel", "FRAGMENT")
    fragment.define(SCHEDULE)
    fragment.define("weak_ref_tensor(Tensor tensor) -> Tensor")
    # Whenever a library is loaded, plimsoll looks for new operations. Any library would do.
    torch.ops.load_library(torch._C.__file__)
    used = torch.zeros(300, dtype=torch.int32, device="cuda")
    sizes = (300, 1, 8192, 32, 8, 64, 64, torch.bfloat16)
    none = (None,) * 5
    made = torch.ops.sgl_kernel.get_scheduler_metadata(
        *sizes, used, *none, 1, 0, True, -1, -1, 0, False, 0, None, 0
    )
    assert made.dtype == torch.int32
    assert 300 <= made.numel() < 10 * 300
    held = torch.cuda.memory_allocated()
    assert torch.ops.sgl_kernel.weak_ref_tensor(used).data_ptr() == used.data_ptr()
    assert torch.cuda.memory_allocated() == held


ALL_REDUCE = """
class CustomAllReduceV2:
    def __init__(self, group):
        raise ValueError("no object in C++ for " + group)
"""


@on_simulated_gpus(gpu="H100")
def test_an_all_reduce_that_is_not_simulated_is_told() -> None:
    name = "sglang.srt.distributed.device_communicators.custom_all_reduce_v2"
    write(Path(), {f"{name.replace('.', '/')}.py": ALL_REDUCE})
    sys.path.insert(0, str(Path.cwd()))
    with pytest.raises(ValueError, match="no object in C\\+\\+ for tp"):
        importlib.import_module(name).CustomAllReduceV2("tp")
    simulation = running_simulation()
    library = simulation.library
    told = [library.name(a.what) for a in library.assumptions()]
    assert any("in place of SGLang's own all-reduce" in each for each in told)
