"""Tests torch.cuda on simulated GPUs, as a script sees it."""

from __future__ import annotations

import copy
import resource
from pathlib import Path

import pytest

from plimsoll.recordings.reading import read_recording
from plimsoll.torch.building import versions
from tests.recordings import SMALL
from tests.simulated import PROGRAMS, on_simulated_gpus, output_of, simulate

torch = pytest.importorskip("torch")

CHECK_OPERATIONS = Path(__file__).parent / "check_operations.py"


@on_simulated_gpus("--gpus", "2")
def test_the_device_is_described_as_the_real_one() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    properties = torch.cuda.get_device_properties(1)
    assert properties.name == "NVIDIA A100-SXM4-80GB", properties.name
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability() == (8, 0)
    assert properties.multi_processor_count == 108
    free, total = torch.cuda.mem_get_info()
    assert total == properties.total_memory
    assert 0 < total - free < 1 << 30
    assert torch.cuda.is_bf16_supported()


@on_simulated_gpus()
def test_statistics_have_the_keys_and_values_of_the_allocator() -> None:
    x = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 3 << 20
    assert torch.cuda.memory_reserved() == 20 << 20
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.current"] == 1
    assert stats["segment.large_pool.peak"] == 1
    assert "num_alloc_retries" in stats
    assert "inactive_split_bytes.all.current" in stats
    torch.cuda.reset_peak_memory_stats()
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 3 << 20
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()


def a_script_halves_its_request() -> None:
    size = 1 << 40
    while True:
        try:
            _x = torch.empty(size, dtype=torch.uint8, device="cuda")
            break
        except torch.OutOfMemoryError as error:
            text = str(error)
            size //= 2
    print(size >> 30)
    wanted = "CUDA out of memory. Tried to allocate 128.00 GiB. GPU 0 has a total"
    assert text.startswith(wanted), text
    torch.cuda.set_per_process_memory_fraction(0.5)


def test_a_script_that_catches_out_of_memory_goes_on_smaller() -> None:
    out = output_of(a_script_halves_its_request)
    assert out == "64\n"


@on_simulated_gpus()
def test_few_values_are_those_of_a_gpu() -> None:
    mask = torch.tensor([True, False, True], device="cuda")
    assert mask.nonzero().flatten().tolist() == [0, 2]
    assert torch.arange(10, device="cuda")[torch.tensor([3, 4], device="cuda")].sum().item() == 7
    lengths = torch.tensor([3, 9, 4]).to("cuda")
    assert lengths.max().item() == 9
    assert bool((lengths > 2).all())
    assert repr(torch.arange(3, device="cuda")) == "tensor([0, 1, 2], device='cuda:0')"


@on_simulated_gpus()
def test_streams_hold_freed_memory_back_until_their_work_is_done() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    a = torch.empty(8192, 8192, device="cuda")
    for _ in range(50):
        a @ a
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(torch.cuda.current_stream())
    address = x.data_ptr()
    del x
    with torch.cuda.stream(side):
        y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert y.data_ptr() != address
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        z = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert z.data_ptr() == address
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    event.synchronize()
    assert event.query()


def test_a_snapshot_is_written_with_python_stacks(tmp_path: Path) -> None:
    output_of(PROGRAMS / "simulated" / "snapshot_of_a_function.py", folder=tmp_path)
    (device,) = read_recording(tmp_path / "snapshot.pickle").devices
    frames = device.frames(int(device.load().stack[1]))
    # plimsoll adds this frame. It tells whether a forward or a backward pass requested the memory.
    assert frames[0][0] == "<plimsoll>"
    assert [frame[2] for frame in frames][1:3] == ["make", "<module>"]


@on_simulated_gpus()
def test_training_in_mixed_precision_steps_and_scales() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.randn(64, 512, device="cuda"))
            assert model[0](torch.randn(2, 512, device="cuda")).dtype == torch.float16
        scaler.scale(out.float().mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert len(optimizer.state) == 4
    assert scaler.get_scale() == 65536


@on_simulated_gpus()
def test_random_states_are_kept_and_restored() -> None:
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    for reentrant in (True, False):
        out = checkpoint(lambda t: torch.nn.functional.dropout(t * 2), x, use_reentrant=reentrant)
        out.sum().backward()
    assert x.grad.shape == x.shape


def add_tensors_of_two_gpus() -> None:
    a = torch.randn(4, device="cuda:0")
    b = torch.randn(4, device="cuda:1")
    assert (a + b.to(a.device)).device.index == 0
    a + b


def test_devices_do_not_mix() -> None:
    done = simulate(add_tensors_of_two_gpus, "--gpus", "2")
    assert done.returncode == 1
    assert "Expected all tensors to be on the same device, but found at least two" in done.stderr


@on_simulated_gpus("--gpus", "2")
def test_a_model_spread_over_two_cards_uses_both_pools() -> None:
    first = torch.nn.Linear(1024, 1024).to("cuda:0")
    second = torch.nn.Linear(1024, 1024).to("cuda:1")
    x = torch.randn(8, 1024, device="cuda:0")
    second(first(x).to("cuda:1")).sum().backward()
    assert torch.cuda.memory_allocated(0) > 8 << 20
    assert torch.cuda.memory_allocated(1) > 8 << 20
    with torch.cuda.device(1):
        assert torch.empty(1, device="cuda").device.index == 1


@on_simulated_gpus()
def test_private_pools_and_graphs_keep_their_memory() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        _x = torch.empty(1 << 20, device="cuda")
    assert any(s["segment_pool_id"] == pool.id for s in torch.cuda.memory_snapshot())
    graph = torch.cuda.CUDAGraph()
    static = torch.zeros(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        _out = static * 2
    graph.replay()
    assert torch.cuda.memory_allocated() >= 12 << 20


@on_simulated_gpus()
def test_a_graph_keeps_the_pools_that_it_was_captured_with() -> None:
    graphs = torch._C._CUDAGraph  # from 2.14 on, torch.cuda itself uses this class
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert graphs.get_currently_capturing_graph() is graph
        with torch.cuda.use_mem_pool(pool):
            x = torch.empty(5 << 20, device="cuda")
        graphs._retain_pool(graph, pool.id)
        graphs._retain_pool(graph, pool.id)
        assert [tuple(of) for of in graphs.pools(graph)] == [tuple(graph.pool()), tuple(pool.id)]
    name = tuple(pool.id)

    def is_kept() -> bool:
        torch.cuda.empty_cache()
        return any(tuple(s["segment_pool_id"]) == name for s in torch.cuda.memory_snapshot())

    del x, pool
    assert is_kept()
    graph.reset()
    assert not is_kept()

    failed = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        failed.capture_begin()
        failed.reset()
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError):
        graphs.get_currently_capturing_graph()


@on_simulated_gpus()
def test_histories_of_pinned_memory_alone_and_metadata_are_ignored() -> None:
    record = torch._C._cuda_record_memory_history
    record("all", "all", "python", 100, False, False, False, [], True, False)
    assert not torch._C._cuda_isHistoryEnabled()
    record("all", "all", "python", 100, False, False, False, [], True, True)
    assert torch._C._cuda_isHistoryEnabled()
    assert not torch._C._cuda_memoryMetadataSupported()
    x = torch.ones(5, device="cuda")
    torch._C._cuda_annotateMemory(x.untyped_storage().data_ptr(), "mine")
    (trace, *_) = torch.cuda.memory._snapshot()["device_traces"]
    assert "annotate" not in {entry["action"] for entry in trace}


@pytest.mark.long
@on_simulated_gpus()
def test_large_tensors_of_the_host_cost_nothing() -> None:
    weights = [torch.randn(1 << 30) for _ in range(16)]
    half = weights[0].half().clone()
    assert half.dtype == torch.float16
    assert weights[1].mean().item() == 1
    _model = torch.nn.Linear(1 << 16, 1 << 15).to("cuda", torch.bfloat16)
    assert torch.cuda.memory_allocated() == (1 << 32) + (1 << 16)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20


@on_simulated_gpus()
def test_storages_are_copied_and_resized() -> None:
    model = torch.nn.Linear(512, 512).cuda()
    twin = copy.deepcopy(model)
    assert twin.weight.data_ptr() != model.weight.data_ptr()
    before = torch.cuda.memory_allocated()
    twin.weight.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before - (1 << 20)
    twin.weight.untyped_storage().resize_(1 << 20)
    assert torch.cuda.memory_allocated() == before


def use_an_operation_without_a_shape_function() -> None:
    library = torch.library.Library("mine", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")
    torch.ops.mine.f(torch.ones(3, device="cuda"))


def test_an_operation_without_a_shape_function_is_named() -> None:
    done = simulate(use_an_operation_without_a_shape_function)
    assert done.returncode == 1
    assert "cannot simulate the operation mine::f" in done.stderr
    assert Path(__file__).name in done.stderr


@pytest.mark.long
def test_recorded_operations_allocate_what_their_kernels_did() -> None:
    done = simulate(
        CHECK_OPERATIONS,
        arguments=[SMALL / "operations.jsonl.gz"],
        gpu="H200",
        environment={"TORCH_CUBLAS_WORKSPACE_CACHE": "1"},  # the default before PyTorch 2.15
    )
    assert done.returncode == 0, done.stderr
    # The recording is of an older PyTorch. In 2.15, a few operations allocate differently, such as
    # group_norm of channels-last tensors.
    changed = 18 if versions.torch_version() >= (2, 15) else 0
    last = done.stdout.splitlines()[-1]
    assert last.endswith(f" operations, {changed} differ"), done.stdout[:2000]


@on_simulated_gpus()
def test_what_cannot_be_known_of_large_tensors_is_as_programs_assert_it() -> None:
    x = torch.randn(2000, 2000, device="cuda")
    assert torch.isfinite(x).all()
    assert torch.allclose(x, x)
    assert not torch.isnan(x).any()
    torch.distributions.Categorical(logits=x)


@on_simulated_gpus()
def test_a_program_that_polls_an_event_gets_on() -> None:
    x = torch.randn(8192, 8192, device="cuda")
    x @ x
    event = torch.cuda.Event()
    event.record()
    assert not event.query()
    while not event.query():
        pass


@on_simulated_gpus()
def test_however_long_a_program_polls_a_few_hundred_questions_do() -> None:
    torch.cuda._sleep(1_000_000_000)  # in clock cycles: about half a second
    event = torch.cuda.Event()
    event.record()
    asked = 0
    while not torch.cuda.current_stream().query():
        asked += 1
    assert 100 < asked < 300
    assert event.query()


def test_settings_that_the_script_makes_hold() -> None:
    done = simulate(PROGRAMS / "simulated" / "own_settings.py", gpu="T4", environment={})
    assert done.returncode == 0, done.stderr


@on_simulated_gpus("--gpus", "2")
def test_data_parallel_spreads_a_batch() -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(64, 64).cuda())
    assert model(torch.randn(8, 64, device="cuda")).shape == (8, 64)
    assert torch.cuda.memory_reserved(1) > 0


@on_simulated_gpus()
def test_writing_a_list_of_tensors_counts_as_a_write_to_each() -> None:
    versions_of = []
    for device in ("cpu", "cuda"):
        tensors = [torch.zeros(4, device=device) for _ in range(2)]
        torch._foreach_add_(tensors, 1.0)
        torch._foreach_add(tensors, 1.0)
        tensors[0].add_(1)
        versions_of.append([tensor._version for tensor in tensors])
    on_host, on_gpu = versions_of
    assert on_gpu == on_host == [2, 1]
