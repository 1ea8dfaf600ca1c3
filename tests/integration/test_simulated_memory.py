"""Tests memory functions of PyTorch on simulated GPUs: pinned memory, pools and snapshots."""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
from typing import Any

import pytest

from tests.simulated import PROGRAMS, on_simulated_gpus, output_of, running_simulation

torch = pytest.importorskip("torch")


@on_simulated_gpus()
def test_pinned_memory_is_reused_once_its_copies_are_done() -> None:
    def pinned() -> Any:
        return torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)

    batch = pinned()
    address = batch.data_ptr()
    _on_device = batch.to("cuda", non_blocking=True)
    del batch
    stats = torch.cuda.host_memory_stats()
    assert stats["active_requests.current"] == 1
    assert stats["active_requests.freed"] == 0
    second = pinned()
    assert second.data_ptr() != address
    torch.cuda.synchronize()
    assert pinned().data_ptr() == address
    assert torch.cuda.host_memory_stats()["allocations.current"] == 2


@on_simulated_gpus()
def test_counters_of_pinned_memory_are_reset_and_follow_what_is_returned() -> None:
    torch.cuda.init()
    x = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
    _y = torch.empty(100, dtype=torch.uint8, pin_memory=True)
    del x
    torch.cuda.memory.reset_peak_host_memory_stats()
    stats = torch.cuda.host_memory_stats()
    assert stats["active_bytes.peak"] == stats["active_bytes.current"] == 128
    torch._C._host_emptyCache()
    stats = torch.cuda.host_memory_stats()
    assert stats["allocated_bytes.current"] == 128
    assert stats["allocations.current"] == 1
    assert stats["num_host_free"] == 1
    assert stats["allocated_bytes.freed"] == 4 << 20
    torch.cuda.memory.reset_accumulated_host_memory_stats()
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == 0


@on_simulated_gpus()
def test_registered_memory_is_pinned_until_it_is_unregistered() -> None:
    torch.cuda.init()
    cudart, x = torch.cuda.cudart(), torch.ones(64)
    assert cudart.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == cudart.cudaError.success
    assert x.is_pinned()
    assert cudart.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 712
    assert cudart.cudaHostUnregister(x.data_ptr()) == cudart.cudaError.success
    assert not x.is_pinned()
    assert cudart.cudaHostUnregister(x.data_ptr()) == 713


@on_simulated_gpus()
def test_pickled_tensors_keep_their_values() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    again = pickle.loads(pickle.dumps(x))
    assert again.is_cuda
    assert again.tolist() == [1, 2, 3]
    file = io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=False)
    for location in ("cuda", "cpu"):
        file.seek(0)
        again = torch.load(file, map_location=location)
        assert again.device.type == location
        assert again.tolist() == [1, 2, 3]


@on_simulated_gpus()
def test_a_pools_snapshot_is_of_that_pool() -> None:
    _x = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    pool = torch.cuda.MemPool()
    assert pool.snapshot() == []
    with torch.cuda.use_mem_pool(pool):
        _y = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert segment["total_size"] == 100 << 20
    assert len(torch.cuda.memory_snapshot()) == 2


@on_simulated_gpus()
def test_the_host_may_not_wait_for_what_a_graph_captures() -> None:
    x = torch.ones(8, device="cuda")
    for wait in (lambda: x.sum().item(), torch.cuda.synchronize, x.cpu, x.nonzero):
        text = "operation not permitted when stream is capturing"
        with (
            pytest.raises(RuntimeError, match=text),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            wait()
        assert not torch.cuda.is_current_stream_capturing()
    assert x.sum().item() == 8


@on_simulated_gpus()
def test_torch_accelerator_says_what_torch_cuda_says() -> None:
    x = torch.ones(1 << 20, device="cuda")
    same = torch.accelerator
    assert same.memory_allocated() == torch.cuda.memory_allocated() == 4 << 20
    assert same.memory_reserved() == 20 << 20
    assert same.memory_stats() == torch.cuda.memory_stats()
    if hasattr(same, "get_memory_info"):
        assert same.get_memory_info() == torch.cuda.mem_get_info()
    del x
    same.empty_cache()
    same.reset_peak_memory_stats()
    assert same.max_memory_reserved() == same.memory_reserved() == 0


@on_simulated_gpus()
def test_observers_hear_of_a_request_that_fails() -> None:
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: heard.append(figures))
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    assert heard == [(0, 200 << 30, total, free)], heard


@on_simulated_gpus()
def test_a_history_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.cuda.memory._record_memory_history("foo")
    assert str(caught.value) == "expected state to be 'state', 'all', or None"


@pytest.mark.long
def test_a_snapshots_stacks_end_in_the_program() -> None:
    output_of(PROGRAMS / "simulated" / "own_stacks.py", environment={})


@on_simulated_gpus()
def test_a_profile_says_what_memory_operations_take() -> None:
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(1024, 1024, device="cuda")
    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=both, profile_memory=True) as profiled:
        _y = x + 1
    (add,) = [event for event in profiled.key_averages() if event.key == "aten::add"]
    assert add.self_device_memory_usage == 4 << 20, add


@on_simulated_gpus()
def test_sites_may_be_read_while_others_are_added() -> None:
    from plimsoll import _core

    torch.cuda.memory._record_memory_history()
    simulation = running_simulation()
    done = threading.Event()
    wrong = []

    def read() -> None:
        while not done.is_set():
            for site in simulation.library.sites():
                try:
                    _core.stack_frames(site.stack)
                except IndexError as error:
                    wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    exec("\n".join(["torch.empty(1, device='cuda')"] * 5000))
    done.set()
    reader.join()
    assert not wrong, len(wrong)
