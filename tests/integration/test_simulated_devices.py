"""Tests several simulated GPUs and the host: where tensors are, and the memory in use."""

from __future__ import annotations

import csv
import os
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from plimsoll.base.units import MiB
from tests.apart import ROOT
from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")


def raises(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call()


@on_simulated_gpus("--gpus", "2")
def test_indices_of_another_device_are_refused() -> None:
    host, x = torch.tensor([0, 1]), torch.ones(3, 3, device="cuda")
    two = "Expected all tensors to be on the same device, but"
    raises(two, lambda: torch.nn.Embedding(3, 3).cuda()(host))
    raises(two, lambda: x.index_select(0, host))
    raises(two, lambda: x.index_select(0, host.to("cuda:1")))
    raises(two, lambda: x.index_add(0, host, x[:2]))
    raises(two, lambda: x.index_copy(0, host, x[:2]))
    raises(two + " found at least two devices, cuda:0 and cpu!", lambda: x.index_fill(0, host, 0.0))
    raises(two, lambda: x.__setitem__(host, torch.ones(2, 3)))
    raises(
        "indices should be either on cpu or on the same device as the indexed tensor (cuda:0)",
        lambda: x[host.to("cuda:1")],
    )
    raises(
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        lambda: torch.ones(3)[host.cuda()],
    )


@on_simulated_gpus()
def test_indices_of_the_host_are_taken_over_where_pytorch_does_so() -> None:
    host, x = torch.tensor([0, 1]), torch.ones(3, 3, device="cuda")
    assert x[host].shape == (2, 3)
    assert x[host].is_cuda
    x[host] = torch.tensor(5.0)
    x[host, host] = 3
    assert x.sum().item() == 29


@on_simulated_gpus("--gpus", "2")
def test_lists_of_several_devices_stay_where_they_are() -> None:
    both = [torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")]
    assert [t.device.index for t in torch._foreach_add(both, 1)] == [0, 1]
    assert [t.device.index for t in torch._foreach_norm(both)] == [0, 1]


@on_simulated_gpus("--gpus", "2")
def test_a_gpu_that_nobody_uses_has_no_context() -> None:
    _x = torch.ones(2, device="cuda:0")
    assert torch.cuda.device_memory_used(0) > 1 << 28
    assert torch.cuda.device_memory_used(1) == 0
    assert torch.cuda.memory_allocated(1) == 0
    assert "no processes" in torch.cuda.list_gpu_processes(1)
    _y = torch.ones(2, device="cuda:1")
    assert torch.cuda.device_memory_used(1) > 1 << 28
    assert "MB GPU memory" in torch.cuda.list_gpu_processes(1)


@on_simulated_gpus("--gpus", "2")
def test_a_program_on_the_second_gpu_alone_uses_that_alone() -> None:
    torch.cuda.set_device(1)
    _x = torch.ones(2, device="cuda")
    assert torch.cuda.device_memory_used(0) == 0
    assert torch.cuda.device_memory_used(1) > 1 << 28


@on_simulated_gpus()
def test_a_device_that_does_not_exist_is_named() -> None:
    torch.cuda.init()
    for index in (-1, 7):
        raises(f"Invalid device argument {index}", partial(torch.cuda.memory_allocated, index))
        raises("invalid device ordinal", partial(torch.cuda.mem_get_info, index))
    raises("Invalid device argument 7", lambda: torch.cuda.set_per_process_memory_fraction(0.5, 7))


@on_simulated_gpus()
def test_a_process_of_a_higher_rank_is_told_how_to_have_its_gpu() -> None:
    os.environ["LOCAL_RANK"] = "3"
    hint = (
        "GPU 3 was asked for, as LOCAL_RANK says, and 1 is simulated, numbered from 0; "
        "--gpus 4 simulates enough"
    )
    raises(hint, lambda: torch.cuda.set_device(3))
    raises(hint, lambda: torch.ones(2).to("cuda:3"))
    raises("GPU 5 was asked for, and 1 is simulated", lambda: torch.ones(2, device="cuda:5"))


@on_simulated_gpus()
def test_types_of_tensors_on_a_gpu_make_such_tensors() -> None:
    x = torch.cuda.FloatTensor(3, 4)
    assert x.is_cuda
    assert x.shape == (3, 4)
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    y = torch.zeros(3)
    assert y.is_cuda
    assert y.dtype == torch.half
    torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(3).is_cuda


@pytest.mark.long
@on_simulated_gpus("--gpus", "2", gpu="H100")
def test_the_first_gpu_has_a_context_after_the_same_calls_as_on_two_h100s() -> None:
    """Checks, for each call in contexts.csv, whether it makes a context on the first GPU.

    A new process makes the call and then uses the second GPU. The expected answers, also in
    contexts.csv, are from two H100s with PyTorch 2.11.
    """
    different = []
    with (ROOT / "tests" / "data" / "contexts.csv").open() as file:
        for row in csv.DictReader(file):
            child = os.fork()
            if child == 0:
                exec(row["call"], {"torch": torch})
                torch.cuda.set_device(1)
                torch.zeros(1024, device="cuda:1")
                os._exit(10 + torch._C._cuda_hasPrimaryContext(0))
            _, status = os.waitpid(child, 0)
            has_context = {10: "no", 11: "yes"}.get(os.waitstatus_to_exitcode(status))
            if has_context != row["has_context"]:
                different.append((row["call"], row["has_context"], has_context))
    assert not different


@on_simulated_gpus("--gpus", "2")
@pytest.mark.parametrize("wait", ["synchronize", "query"])
def test_a_thread_that_asks_for_its_stream_has_a_context_on_the_first_gpu(wait: str) -> None:
    """A new thread's current device is GPU 0, whatever the main thread's is."""
    torch.cuda.set_device(1)
    torch.cuda.current_stream()  # the first lookup makes a context by itself
    torch.zeros(1024, device="cuda:1")
    seen: list[bool] = []

    def ask() -> None:
        stream = torch.cuda.current_stream()
        seen.append(torch._C._cuda_hasPrimaryContext(0))
        getattr(stream, wait)()
        seen.append(torch._C._cuda_hasPrimaryContext(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [False, True]


@on_simulated_gpus(gpu="H100")
def test_each_thread_has_handles_of_libraries_of_its_own() -> None:
    def taken_mib() -> float:
        free, total = torch.cuda.mem_get_info()
        return float(total - free - torch.cuda.memory_reserved()) / MiB

    def multiply() -> None:
        torch.mm(x, x)

    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    before = taken_mib()
    product = x @ x
    assert taken_mib() - before == 66
    product.sum().backward()  # runs in autograd's own thread
    assert taken_mib() - before == 66 + 64
    (x @ x).sum().backward()
    assert taken_mib() - before == 66 + 64
    for _ in range(2):  # the second thread reuses the cuBLAS handle of the first
        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            time.sleep(0.001)  # the thread returns its handle as it exits, some time after join()
        assert taken_mib() - before == 66 + 2 * 64

    square = torch.eye(8, device="cuda", requires_grad=True)
    before = taken_mib()
    solved = torch.cholesky_solve(square, torch.linalg.cholesky(square))
    assert taken_mib() - before == 98
    solved.sum().backward()
    assert taken_mib() - before == 98 + 96
