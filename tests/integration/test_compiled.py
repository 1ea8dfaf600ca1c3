"""Tests compiled programs on simulated GPUs: torch.compile, Triton, and kernels' memory."""

from __future__ import annotations

import importlib
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plimsoll.base.units import format_size
from plimsoll.prediction.assumed import READS_UNKNOWN
from plimsoll.prediction.predict import predict
from plimsoll.prediction.text import prediction_text
from tests.simulated import PROGRAMS, on_simulated_gpus, output_of, running_simulation, simulate

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="what is compiled needs Triton")

MIB = 1 << 20
KERNELS = PROGRAMS / "triton_kernels.py"

TRAINS = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512))
model.cuda()
run = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    run(torch.randn(4096 if step < 2 else 2048, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BREAKS = """
import torch

@torch.compile
def split(x):
    y = x.sin().cos()
    torch._dynamo.graph_break()
    return y.exp() + 1

split(torch.randn(1024, device="cuda"))
"""
STEPS = """
import torch

model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))

@torch.compile(backend="BACKEND")
def update():
    optimizer.step()

for _ in range(3):
    model(torch.randn(32, 64, device="cuda")).sum().backward()
    update()
    optimizer.zero_grad()
"""
WITHOUT_SHAPES = """
import torch

library = torch.library.Library("mine", "DEF")
library.define("odd(Tensor x) -> Tensor")
library.impl("odd", lambda x: x, "CUDA")

@torch.compile(fullgraph=True)
def call(x):
    return torch.ops.mine.odd(x + 1) * 2

call(torch.ones(4, device="cuda"))
"""
TUNED_BYTES = 2 * 1024 * 1024 * 2
TUNES = """
import torch

model = torch.nn.Linear(1024, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
run = torch.compile(model, mode="max-autotune-no-cudagraphs")
with torch.no_grad():
    run(torch.zeros(1024, 1024, device="cuda", dtype=torch.bfloat16))
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.mark.long
@on_simulated_gpus()
def test_a_fused_function_takes_its_result_and_nothing_between() -> None:
    def many(x: Any) -> Any:
        return torch.sigmoid(torch.tanh(x.sin() * 2) + x.cos()) * x.exp()

    x = torch.zeros(16 * MIB, device="cuda")
    peaks = []
    for function in (many, torch.compile(many)):
        # The first call compiles the function, and allocates memory that later calls reuse.
        function(torch.zeros(16 * MIB, device="cuda"))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = function(x)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert torch.cuda.memory_allocated() - before == x.nbytes
        del out
    eager, compiled = peaks
    assert compiled == x.nbytes
    assert eager >= 3 * x.nbytes


@pytest.mark.long
@on_simulated_gpus()
def test_graphs_of_reduce_overhead_take_their_memory_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda()
    run = torch.compile(model, mode="reduce-overhead")
    allocations = []
    for _ in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        run(torch.zeros(64, 256, device="cuda")).sum().backward()
        model.zero_grad()
        allocations.append(torch.cuda.memory_stats()["allocation.all.allocated"])
    taken = [after - before for before, after in pairwise(allocations)]
    assert taken[-1] == taken[-2] < taken[0]
    pools = {s["segment_pool_id"] for s in torch.cuda.memory._snapshot()["segments"]}
    assert len(pools) > 1


@pytest.mark.long
@on_simulated_gpus()
def test_a_result_that_a_later_run_of_its_graph_has_overwritten_is_refused_and_ends_nothing() -> (
    None
):
    run = torch.compile(lambda x: x.sin() * 2 + x.cos(), mode="reduce-overhead")
    x = torch.randn(1 << 12, device="cuda")
    whole, views = [], []
    for _ in range(5):
        out = run(x)
        whole.append(out)
        views.append(out.view(-1, 2))
    for stale in (whole[0], views[0], whole[1], views[1]):
        for use in (torch.sum, torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.zero_):
            with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
                use(stale)
        assert torch.empty_like(stale).shape == stale.shape
    assert views[-1].sum().isfinite()


@on_simulated_gpus()
def test_a_kernel_of_the_programs_own_launches_and_its_hooks_are_called() -> None:
    from tests.programs.triton_kernels import double

    names = []
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(lambda metadata: names.append(metadata.get()["name"]))
    x = torch.ones(1000, device="cuda")
    out = torch.empty_like(x)
    before = torch.cuda.memory_allocated()
    double[(triton.cdiv(1000, 256),)](x, out, 1000, BLOCK=256)
    double[lambda chosen: (1000 // chosen["BLOCK"],)](x, out, 1000, BLOCK=250 + 6)
    assert names == ["double", "double"]
    assert torch.cuda.memory_allocated() == before


@on_simulated_gpus()
def test_what_a_kernel_reads_keeps_its_values_and_what_it_writes_has_none() -> None:
    from tests.programs.triton_kernels import gather

    x, places = torch.zeros(8, device="cuda"), torch.arange(8, device="cuda")
    out = torch.zeros(8, dtype=torch.int64, device="cuda")
    gather[(1,)](x, places, out, BLOCK=8)
    assert not x.any()
    assert places.tolist() == list(range(8))
    assert torch.cuda.memory_allocated() == 3 * 512
    known = simulated_assumptions()
    out.tolist()
    assert simulated_assumptions() == known + 1


@on_simulated_gpus()
def test_what_a_kernel_reads_is_known_where_it_calls_functions_of_tritons() -> None:
    from tests.programs.triton_kernels import total

    places = torch.arange(8, device="cuda")
    kernel = total[(1,)](
        torch.zeros(8, device="cuda"), places, torch.ones(1, device="cuda"), BLOCK=8
    )
    assert places.tolist() == list(range(8))
    assert kernel.metadata.shared > 0


@pytest.mark.long
@on_simulated_gpus()
def test_every_compilation_is_counted() -> None:
    from plimsoll.prediction.child.compiled_report import compiled_use

    torch._dynamo.config.cache_size_limit = 100
    add = torch.compile(lambda x, number: x + number, backend="eager", dynamic=False)
    for number in range(70):
        add(torch.ones(2, device="cuda"), number)
    simulation = running_simulation()
    use = compiled_use(simulation, 0, np.zeros(0, np.int64))
    assert use is not None
    assert [function.graphs for function in use.functions] == [70]


@pytest.mark.long
@on_simulated_gpus()
def test_kernels_of_the_program_are_its_own_in_compiled_functions_too() -> None:
    from tests.programs.triton_kernels import double

    def twice(x: Any) -> Any:
        out = torch.empty_like(x)
        double[(1,)](x, out, 8, BLOCK=8)
        return out + 1

    torch.compile(twice)(torch.ones(8, device="cuda"))
    simulation = running_simulation()
    assert [name.rstrip("_0123456789") for name in simulation.kernel_counts.own] == ["double"]
    assert len(simulation.kernel_counts.launches) == 2


def simulated_assumptions() -> int:
    simulation = running_simulation()
    return sum(
        simulation.library.name(each.what) == READS_UNKNOWN
        for each in simulation.library.assumptions()
    )


@on_simulated_gpus()
def test_tuning_takes_the_buffer_that_empties_the_cache() -> None:
    from tests.programs.triton_kernels import double

    configs = [triton.Config({"BLOCK": size}) for size in (128, 256)]
    tuned = triton.autotune(configs=configs, key=["numbers"])(double)
    x = torch.ones(1000, device="cuda")
    tuned[(8,)](x, torch.empty_like(x), 1000)
    assert torch.cuda.max_memory_allocated() >= 256 * MIB
    torch.cuda.reset_peak_memory_stats()
    tuned[(8,)](x, torch.empty_like(x), 1000)
    assert torch.cuda.max_memory_allocated() < MIB


@on_simulated_gpus(gpu="H100")
def test_scratch_memory_comes_from_the_programs_allocator() -> None:
    from tests.programs.triton_kernels import describe

    asked = []

    def allocate(size: int, alignment: int, _: int | None) -> Any:
        asked.append((size, alignment))
        return torch.empty(size, device="cuda", dtype=torch.int8)

    triton.set_allocator(allocate)
    describe[(5,)](torch.zeros(64, 64, device="cuda"), 64, 64, BLOCK=16)
    assert asked == [(5 * 128, 128)]  # a descriptor of 128 bytes for each of 5 programs


def test_a_kernel_that_does_not_compile_is_named_with_its_line() -> None:
    done = simulate(KERNELS)
    assert done.returncode != 0
    assert "no_such_function" in done.stderr
    assert "launch_wrong" in done.stderr


@pytest.mark.long
def test_no_cache_of_a_real_run_is_written(tmp_path: Path) -> None:
    real = tmp_path / "real"
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(real), "TRITON_CACHE_DIR": str(real / "triton")}
    output_of(TRAINS, environment={**os.environ, **caches, "XDG_CACHE_HOME": cache_home(tmp_path)})
    assert not real.exists()
    assert list((tmp_path / "cache" / "plimsoll" / "compiled").rglob("*.py"))


@pytest.mark.long
def test_a_second_run_takes_what_the_first_one_took(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": cache_home(tmp_path)}
    first, second = (output_of(TUNES, environment=environment) for _ in range(2))
    assert first == second
    # The peak also includes a buffer: Triton writes to it to empty the L2 cache.
    assert int(first.split()[0]) > TUNED_BYTES + 40 * MIB


def cache_home(folder: Path) -> str:
    """Returns a new cache folder with links to the libraries that plimsoll has built so far."""
    home = folder / "cache"
    (home / "plimsoll").mkdir(mode=0o700, parents=True)
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll"
    for library in usual.glob("*.so"):
        os.link(library, home / "plimsoll" / library.name)
    return str(home)


@pytest.mark.long
def test_the_report_says_what_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    found = predict(tmp_path / "train.py", gpu="H100")
    use = found.compiled
    assert use is not None
    (function,) = use.functions
    assert function.graphs == 2
    assert function.recompilations == 1
    assert function.reason is not None
    assert "size mismatch" in function.reason
    assert use.launches > use.kernels > 4
    assert use.own_kernels == []
    assert not use.graph_breaks
    text = prediction_text(found)
    assert "Compiled: 1 function, 2 graphs" in text
    assert use.eager is not None
    eager = predict(write(tmp_path, "eager.py", TRAINS.replace("torch.compile(model)", "model")))
    assert use.eager.peak_allocated_bytes == eager.peak_allocated_bytes
    assert use.eager.peak_reserved_bytes == eager.peak_reserved_bytes
    assert found.peak_reserved_bytes < eager.peak_reserved_bytes
    assert f"run eagerly: peak allocated {format_size(eager.peak_allocated_bytes)}" in text
    assert any("too large for the card" in assumed.what for assumed in found.assumptions)
    assert len(found.step_peaks_bytes) == 4
    assert found.by_category["parameters"] > 0
    json.dumps(found.to_dict())


def write(folder: Path, name: str, program: str) -> Path:
    path = folder / name
    path.write_text(program)
    return path


@pytest.mark.long
def test_what_first_calls_take_is_named_apart(tmp_path: Path) -> None:
    use = predict(write(tmp_path, "tune.py", TUNES), gpu="H100").compiled
    assert use is not None
    assert use.first_calls_bytes["tuning products"] >= TUNED_BYTES
    assert use.peak_in == "tuning products"


@pytest.mark.long
def test_a_step_in_a_compiled_function_ends_a_step_once(tmp_path: Path) -> None:
    steps = {}
    for backend in ("eager", "inductor"):
        path = write(tmp_path, f"{backend}.py", STEPS.replace("BACKEND", backend))
        steps[backend] = len(predict(path).step_peaks_bytes)
    assert steps == {"eager": 3, "inductor": 3}


@on_simulated_gpus(gpu="H100")
def test_registers_are_those_that_the_compiler_gives() -> None:
    from tests.programs.triton_kernels import double

    x = torch.ones(1 << 14, device="cuda")
    sizes = (256, 1 << 14)
    kernels = [double[(1,)](x, torch.empty_like(x), len(x), BLOCK=size) for size in sizes]
    few, many = (kernel.n_regs for kernel in kernels)
    assert 8 <= few < many <= 255
    assert all(kernel.n_spills == 0 for kernel in kernels)


@pytest.mark.long
@on_simulated_gpus(gpu="H200")
def test_a_reduction_that_needs_many_registers_is_tuned() -> None:
    # On an H200 with PyTorch 2.11, Inductor tuned two block sizes for each of this function's two
    # kernels.
    def normalise(x: Any, weight: Any) -> Any:
        y = torch.nn.functional.gelu(x)
        return torch.nn.functional.layer_norm(y, (4096,), weight)

    x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    weight = torch.ones(4096, device="cuda", requires_grad=True)
    torch.compile(normalise)(x, weight).sum().backward()
    simulation = running_simulation()
    assert "tuning kernels" in {call.what for call in simulation.first_calls.all}


@on_simulated_gpus()
def test_a_graph_reads_its_seed_from_memory_that_goes_with_the_last_graph() -> None:
    def live() -> int:
        return int(torch.cuda.memory_stats()["active.all.current"])

    torch.cuda.init()
    torch.empty(1, device="cuda")  # creates the CUDA context
    before = live()
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for graph in graphs:
        with torch.cuda.graph(graph):
            pass
    assert live() - before == 2
    graphs[0].reset()
    assert live() - before == 2
    graphs[1].reset()
    assert live() == before


@pytest.mark.long
@on_simulated_gpus("--gpus", "2")
def test_each_gpu_compiles_for_itself() -> None:
    run = torch.compile(lambda x: torch.relu(x) * 2)
    for device in range(2):
        before = torch.cuda.memory_allocated(device)
        out = run(torch.zeros(MIB, device=f"cuda:{device}"))
        assert out.device.index == device
        assert torch.cuda.memory_allocated(device) - before == out.nbytes
        del out


@pytest.mark.long
@on_simulated_gpus()
def test_the_backward_pass_of_a_compiled_step_is_compiled() -> None:
    import torch._dynamo.config

    torch._dynamo.config.compiled_autograd = True
    model = torch.nn.Linear(64, 64, device="cuda")

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    run = torch.compile(step)
    for _ in range(2):
        run(torch.zeros(32, 64, device="cuda"))
    assert model.weight.grad is not None
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] > 0


@pytest.mark.long
@on_simulated_gpus()
def test_a_budget_of_activations_saves_memory() -> None:
    import torch._functorch.config

    model = torch.nn.Sequential(
        *[m for _ in range(4) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    ).cuda()
    held = []
    for budget in (1.0, 0.0):
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = budget
        before = torch.cuda.memory_allocated()
        out = torch.compile(model)(torch.zeros(8192, 512, device="cuda"))
        held.append(torch.cuda.memory_allocated() - before)
        out.sum().backward()
        model.zero_grad()
        del out
    all_kept, recomputed = held
    assert recomputed < all_kept


@on_simulated_gpus()
def test_an_exported_program_runs() -> None:
    model = torch.nn.Linear(64, 32, device="cuda")
    program = torch.export.export(model, (torch.zeros(4, 64, device="cuda"),))
    out = program.module()(torch.zeros(4, 64, device="cuda"))
    assert tuple(out.shape) == (4, 32)
    assert out.is_cuda


@on_simulated_gpus()
def test_a_package_for_cpp_is_refused_in_one_line() -> None:
    model = torch.nn.Linear(64, 32, device="cuda")
    program = torch.export.export(model, (torch.zeros(4, 64, device="cuda"),))
    with pytest.raises(NotImplementedError, match="does not simulate packages of AOTInductor"):
        torch._inductor.aoti_compile_and_package(program)


@on_simulated_gpus()
def test_hooks_before_a_kernel_are_called() -> None:
    from tests.programs.triton_kernels import double

    cleared = []
    config = triton.Config({"BLOCK": 128}, pre_hook=lambda named: cleared.append(sorted(named)))
    tuned = triton.autotune(configs=[config], key=["numbers"])(double)
    x = torch.ones(1000, device="cuda")
    tuned[(8,)](x, torch.empty_like(x), 1000)
    assert cleared
    assert "BLOCK" in cleared[-1]


def test_an_operation_without_shapes_is_named_with_its_line(tmp_path: Path) -> None:
    done = simulate(write(tmp_path, "custom.py", WITHOUT_SHAPES))
    assert done.returncode != 0
    assert "mine::odd" in done.stderr
    assert "custom.py" in done.stderr


@pytest.mark.long
def test_a_graph_break_is_told(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    use = predict(tmp_path / "breaks.py", gpu="H100").compiled
    assert use is not None
    assert sum(use.graph_breaks.values()) == 1
    assert [each.graphs for each in use.functions] == [1, 1]


@pytest.mark.long
def test_a_prediction_compiles_as_a_plain_run_does(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINS + "\nprint(torch.cuda.max_memory_allocated())\n")
    assert predict(path, gpu="A100-80GB").peak_allocated_bytes == int(output_of(path))


@on_simulated_gpus()
def test_the_compiler_decides_by_tables_of_any_size_what_to_keep() -> None:
    class Table:
        @property
        def inputs(self) -> float:
            table = torch.zeros(1 << 19)
            table[5:7] = 3
            return float(table[4:8].sum())

    # In a simulated run, plimsoll keeps at most 32 MiB of values. `held` uses up all 32 MiB. Small
    # tensors do not count: those of up to 4 KiB, and integer tensors of up to 1 MiB.
    held = [torch.zeros(1 << 20) for _ in range(16)]
    assert len(held) == 16
    partitioners = importlib.import_module("torch._functorch.partitioners")
    assert partitioners.choose_saved_values_set(None, Table(), memory_budget=0) == 6


@pytest.mark.parametrize("form", ["unpacked", "binary"])
def test_a_graph_that_is_compiled_alone_is_saved_and_loaded(form: str) -> None:
    output_of(save_and_load, arguments=[form])


def save_and_load(form: str) -> None:
    saved = Path("saved").absolute()

    def compile_alone(graph: Any, inputs: list[Any]) -> Any:
        made = torch._inductor.standalone_compile(graph, inputs)
        made.save(path=str(saved), format=form)
        return made

    x = torch.randn(64, 128, device="cuda")
    run = torch.compile(lambda x: (x.sin() + 1).sum(-1), backend=compile_alone)
    assert run(x).shape == (64,)
    assert saved.is_dir() == (form == "unpacked")
    assert not saved.is_dir() or any(path.suffix == ".py" for path in saved.rglob("*"))
    loaded = torch._inductor.CompiledArtifact.load(path=str(saved), format=form)
    held = torch.cuda.memory_allocated()
    (sums,) = loaded(x)
    assert sums.shape == (64,)
    assert torch.cuda.memory_allocated() - held == 512
