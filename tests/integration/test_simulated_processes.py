"""Programs of several processes on simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import assert_runs

pytest.importorskip("torch")

REFUSED = "Cannot re-initialize CUDA in forked subprocess"


def test_a_forked_child_may_not_use_cuda(tmp_path: Path) -> None:
    out = assert_runs(tmp_path, """
import os
x = torch.ones(2, device="cuda")
if os.fork() == 0:
    for use in (lambda: torch.ones(2, device="cuda"), torch.cuda.synchronize):
        try:
            use()
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
""")  # fmt: skip
    assert out.count(REFUSED) == 2


def test_a_worker_that_uses_cuda_after_its_parent_fails_instead_of_hanging(tmp_path: Path) -> None:
    assert_runs(tmp_path, f"""
class OnDevice(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.ones(3, device="cuda")

torch.cuda.init()
try:
    next(iter(torch.utils.data.DataLoader(OnDevice(), num_workers=1)))
except RuntimeError as error:
    assert {REFUSED!r} in str(error), str(error)
else:
    raise AssertionError("no error")
""")  # fmt: skip


def test_spawned_processes_have_gpus_of_their_own(tmp_path: Path) -> None:
    out = assert_runs(tmp_path, """
def work(rank, queue):
    x = torch.ones(1 << 20, device="cuda")
    print(torch.cuda.get_device_name(), torch.cuda.memory_allocated(), flush=True)
    queue.put(torch.full((2,), float(rank), device="cuda"))

if __name__ == "__main__":
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    held = torch.ones(1 << 20, device="cuda")
    torch.multiprocessing.spawn(work, (queue,), nprocs=2)
    got = [queue.get() for _ in range(2)]
    assert all(tensor.is_cuda for tensor in got)
    assert sorted(tensor.tolist() for tensor in got) == [[0, 0], [1, 1]]
""")  # fmt: skip
    assert out.splitlines() == [f"NVIDIA A100-SXM4-80GB {4 << 20}"] * 2


def test_autograds_threads_end_before_the_interpreter(tmp_path: Path) -> None:
    """One that let go of a Python object after it would take the process down with it."""
    out = assert_runs(tmp_path, """
import threading
local = threading.local()

class Kept:
    def __init__(self):
        self.thread = threading.get_ident()
    def __del__(self):
        print("its own thread:", threading.get_ident() == self.thread, flush=True)

def keep(grad):
    local.kept = Kept()

x = torch.ones(2, device="cuda", requires_grad=True)
x.register_hook(keep)
(x * 2).sum().backward()
""")  # fmt: skip
    assert out.splitlines()[-1] == "its own thread: True"


def test_a_forked_child_ends_without_its_parents_threads(tmp_path: Path) -> None:
    out = assert_runs(tmp_path, """
import os, sys, time
x = torch.ones(2, device="cuda", requires_grad=True)
(x * 2).sum().backward()
began = time.monotonic()
if os.fork() == 0:
    sys.exit(0)
_, status = os.wait()
print("ended", status, time.monotonic() - began < 5, flush=True)
""")  # fmt: skip
    assert out.splitlines()[-1] == "ended 0 True"
