"""Tests an engine that starts a daemon process for each card. These processes share buffers."""

from __future__ import annotations

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.prediction.predict import predict
from tests.simulated import PROGRAMS, on_simulated_gpus

torch = pytest.importorskip("torch")

WORKERS = PROGRAMS / "jobs" / "engine_workers.py"


def test_workers_that_a_finalizer_ends_tell_what_they_took() -> None:
    """Checks the peaks. The program itself checks that the buffer takes memory outside PyTorch."""
    found = predict(WORKERS, ["2", "well"], gpu="H100", gpus=2)
    assert found.fits
    assert [use.device for use in found.ranks] == [0, 1]
    for use in found.ranks:
        assert use.peak_allocated_bytes is not None
        assert use.device_used_bytes is not None
        assert GiB + 48 * MiB <= use.peak_allocated_bytes < GiB + 49 * MiB
        assert use.serving is not None
        assert (use.serving.weights_bytes, use.serving.kv_cache_bytes) == (48 * MiB, GiB)
        assert use.device_used_bytes > use.peak_allocated_bytes + 64 * MiB
    assert found.shared_cards == []
    assert found.serving is not None
    assert str(found).startswith(f"{WORKERS} fits on H100: an engine starts on 2 ranks, and leaves")


def test_a_worker_that_runs_out_of_memory_fails_the_engine_in_its_stage() -> None:
    """The worker catches its out-of-memory error, and the engine raises a different error."""
    found = predict(WORKERS, ["2", "full"], gpu="H100", gpus=2)
    assert found.fits is False
    assert found.worst_rank == 1
    assert [use.fits for use in found.ranks] == [True, False]
    first = str(found).splitlines()[0]
    assert first.endswith("an engine runs out of memory while it makes the KV cache")


@on_simulated_gpus(gpu="H100")
def test_a_shared_buffer_lives_as_long_as_a_tensor_over_it() -> None:
    memory = torch._C._distributed_c10d._SymmetricMemory
    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    buffer = memory.empty_strided_p2p((1024,), (1,), torch.float32, torch.device("cuda:0"))
    part = buffer[:8]
    del buffer
    assert free - torch.cuda.mem_get_info()[0] == 2 * MiB
    del part
    assert torch.cuda.mem_get_info()[0] == free


@on_simulated_gpus(gpu="T4")
def test_a_buffer_for_which_there_is_no_room_changes_nothing() -> None:
    memory = torch._C._distributed_c10d._SymmetricMemory
    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    with pytest.raises(torch.OutOfMemoryError):
        memory.empty_strided_p2p((1 << 35,), (1,), torch.uint8, torch.device("cuda:0"))
    assert torch.cuda.mem_get_info()[0] == free
    assert not memory.has_multicast_support(None, 0)
