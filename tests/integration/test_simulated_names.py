"""Tests that `torch._C` has every name of a CUDA build.

On simulated GPUs, each function of such a build returns a result or raises an error.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

NAMES = Path(__file__).parents[1] / "data" / "cuda_build_names.txt"
MIB = 1 << 20


def names() -> list[str]:
    lines = NAMES.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_list_is_sorted_and_names_each_once() -> None:
    assert names() == sorted(set(names()))
    assert len(names()) > 150


@on_simulated_gpus()
def test_every_name_of_a_cuda_build_is_there() -> None:
    missing = []
    for name in names():
        try:
            functools.reduce(getattr, name.split("."), torch._C)
        except AttributeError:
            missing.append(name)
    assert missing == []


ASKED = (
    *("_cuda_getCompiledVersion", "_cuda_getArchFlags", "_cuda_getDevice", "_cuda_getDeviceCount"),
    *("_cuda_getCurrentBlasHandle", "_cuda_getCurrentSolverHandle", "_cuda_getAllocatorBackend"),
    *("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize", "_cuda_getAllocator"),
    *("_cuda_get_sync_debug_mode", "_cuda_get_cudnn_benchmark_limit", "_cuda_isInBadFork"),
    *("_cuda_get_conv_benchmark_empty_cache", "_cuda_record_untuned_is_enabled"),
    *("_cuda_cudaCachingAllocator_is_enabled", "_cuda_isHistoryEnabled", "_cuda_memorySnapshot"),
    *("_cuda_isCurrentStreamCapturing", "_cuda_hostMemoryStats", "_cuda_memoryMetadataSupported"),
    *("_cuda_tunableop_is_enabled", "_cuda_tunableop_tuning_is_enabled"),
    *("_cuda_tunableop_get_results", "_cuda_tunableop_get_validators"),
    *("_cuda_tunableop_get_rotating_buffer_size", "_cuda_tunableop_get_filename"),
    *("_cudnn.getVersionInt", "_cusparselt.getVersionInt", "_cudart.cudaProfilerStart"),
    *("_nvtx.rangePop", "_nccl_version", "_nccl_version_suffix", "_nccl_unique_id"),
    *("_rocm_is_backward_pass", "_graph_pool_handle", "_host_emptyCache", "_cuda_ipc_collect"),
    *("_distributed_c10d._is_nvshmem_available", "_cuda_clearCublasWorkspaces"),
)


@on_simulated_gpus()
def test_what_can_be_asked_without_arguments_answers() -> None:
    torch.cuda.init()
    for name in ASKED:
        functools.reduce(getattr, name.split("."), torch._C)()


@on_simulated_gpus()
def test_compiler_and_distributed_find_what_they_look_for() -> None:
    import torch._dynamo.trace_rules
    import torch.distributed as dist

    assert torch._dynamo.trace_rules.get_torch_obj_rule_map()  # looks up all names of torch._C
    assert dist.is_nccl_available()
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = 4
    options.is_high_priority_stream = True
    dist.init_process_group("nccl", pg_options=options)
    assert dist.get_world_size() == 1
    made = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, options)
    assert isinstance(made, dist.ProcessGroupNCCL)
    assert not isinstance(made, dist.ProcessGroupGloo)


@on_simulated_gpus()
def test_settings_are_remembered() -> None:
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.cuda.tunable.enable(True)
    torch.cuda.tunable.set_max_tuning_duration(7)
    torch.cuda.tunable.set_filename("results.csv")
    assert torch.cuda.tunable.is_enabled()
    assert torch.cuda.tunable.get_max_tuning_duration() == 7
    assert torch.cuda.tunable.get_filename() == "results.csv"
    assert torch.cuda.tunable.get_results() == ()
    torch.backends.cudnn.benchmark_limit = 3
    assert torch.backends.cudnn.benchmark_limit == 3


@pytest.mark.long
@on_simulated_gpus("--gpus", "1", gpu="H100")
def test_a_workspace_of_a_size_that_the_program_sets_is_taken() -> None:
    before = torch._C._cuda_getCublasWorkspaceSize()
    assert before == 32 * MIB
    torch._C._cuda_setCublasWorkspaceSize(5 * MIB)
    assert torch._C._cuda_getCublasWorkspaceSize() == 5 * MIB
    x = torch.ones(64, 64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    y = x @ x
    assert torch.cuda.max_memory_allocated() - held == y.nbytes + 5 * MIB
    torch._C._cuda_resetCublasWorkspaceSize()
    assert torch._C._cuda_getCublasWorkspaceSize() == before
    assert torch._C._cuda_getCublasLtWorkspaceSize() == MIB
    with pytest.raises(RuntimeError, match="must not be negative"):
        torch._C._cuda_setCublasLtWorkspaceSize(-1)


@on_simulated_gpus()
def test_streams_and_events_are_pytorchs_own_classes() -> None:
    stream = torch.cuda.Stream(priority=-1)
    assert isinstance(stream, torch._C._CudaStreamBase)
    assert stream.priority == -1
    with torch.cuda.stream(stream):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    event.synchronize()
    assert isinstance(event, torch._C._CudaEventBase)
    assert torch._C._cuda_isCurrentStreamCapturing() is False
    context = torch._C._CUDAGreenContext.create(num_sms=8, device_id=0)
    assert isinstance(context.Stream(), torch.cuda.Stream)


@on_simulated_gpus("--gpus", "2")
def test_communication_between_devices_copies() -> None:
    from torch.nn.parallel import comm

    parts = [torch.full((2,), float(i), device=f"cuda:{i}") for i in range(2)]
    outs = [torch.zeros(4, device=f"cuda:{i}") for i in range(2)]
    torch.cuda.nccl.all_gather(parts, outs)
    assert [out.tolist() for out in outs] == [[0, 0, 1, 1]] * 2
    torch.cuda.nccl.broadcast(parts, root=1)
    assert parts[0].tolist() == [1, 1]
    comm.broadcast(parts[1], out=[outs[0][:2]])
    assert outs[0].tolist() == [1, 1, 1, 1]
    comm.scatter(outs[0] * 3, out=parts)
    assert [part.tolist() for part in parts] == [[3, 3], [3, 3]]
    comm.gather(parts, out=outs[1])
    assert outs[1].tolist() == [3, 3, 3, 3]
    torch.cuda.nccl.reduce_scatter(outs, parts)
    alone = torch.ones(3, device="cuda")
    torch.cuda.nccl.all_reduce([alone])
    assert alone.tolist() == [1, 1, 1]
    assert torch.cuda.nccl.version()[0] == 2
    assert len(torch.cuda.nccl.unique_id()) == 128


@on_simulated_gpus()
def test_a_kernel_written_as_text_has_results_with_memory() -> None:
    code = "template <typename T> T f(T x, T y) { return x; }"
    kernel = torch.cuda.jiterator._create_jit_fn(code)
    z = kernel(torch.ones(3, 1, device="cuda"), torch.ones(4, device="cuda"))
    assert z.is_cuda
    assert z.shape == (3, 4)


@on_simulated_gpus()
def test_allocators_of_the_programs_own_can_be_named_and_pools_made_of_them() -> None:
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()
    allocator = torch._C._cuda_customAllocator(0, 0)
    allocator.set_record_stream_fn(1)
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(MIB, device="cuda")
    assert torch.cuda.memory_allocated() == x.nbytes
    assert isinstance(torch._C._cuda_getAllocator(), torch._C._cuda_CUDAAllocator)


@on_simulated_gpus()
def test_an_allocator_of_the_programs_own_asks_the_driver_each_time() -> None:
    library = Path("own.so")
    with pytest.raises(OSError, match=r"own\.so"):
        torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give_back")
    library.touch()  # an empty file suffices: plimsoll never calls the library's functions
    own = torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give_back")
    torch.cuda.memory.change_current_allocator(own)
    x = torch.ones(MIB + 1, device="cuda")
    assert torch.cuda.memory_reserved() == torch.cuda.memory_allocated() >= x.nbytes
    del x
    assert torch.cuda.memory_reserved() == 0
    with pytest.raises(RuntimeError, match="Can't swap an already initialized allocator"):
        torch.cuda.memory.change_current_allocator(own)


REFUSED: dict[str, tuple[Any, ...]] = {
    "_cuda_cudaHostAllocator": (),
    "_cuda_cudaCachingAllocator_enable": (False,),
    "_nccl_init_rank": (2, b"", 0),
    "_FastCudaLauncher": (),
}


@pytest.mark.parametrize("name", REFUSED)
@on_simulated_gpus()
def test_what_cannot_be_answered_says_so_in_a_line(name: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        getattr(torch._C, name)(*REFUSED[name])
    assert str(caught.value).startswith(f"plimsoll does not simulate torch._C.{name}")
    assert len(str(caught.value).splitlines()) == 1
