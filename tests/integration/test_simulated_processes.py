"""Tests programs of several processes on simulated GPUs."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import pytest

from tests.simulated import PROGRAMS, on_simulated_gpus, output_of

torch = pytest.importorskip("torch")

REFUSED = "Cannot re-initialize CUDA in forked subprocess"


class OnDevice(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.ones(3, device="cuda")


class Kept:
    """Prints whether the thread that frees the object is the thread that created it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def __del__(self) -> None:
        print("its own thread:", threading.get_ident() == self.thread, flush=True)


def a_child_uses_cuda() -> None:
    _x = torch.ones(2, device="cuda")
    if os.fork() == 0:
        for use in (lambda: torch.ones(2, device="cuda"), torch.cuda.synchronize):
            try:
                use()
            except RuntimeError as error:
                print(error, flush=True)
        os._exit(0)
    os.wait()


def test_a_forked_child_may_not_use_cuda() -> None:
    assert output_of(a_child_uses_cuda).count(REFUSED) == 2


@on_simulated_gpus()
def test_a_worker_that_uses_cuda_after_its_parent_fails_instead_of_hanging() -> None:
    torch.cuda.init()
    with pytest.raises(RuntimeError, match=REFUSED):
        next(iter(torch.utils.data.DataLoader(OnDevice(), num_workers=1)))


@pytest.mark.long
def test_spawned_processes_have_gpus_of_their_own() -> None:
    out = output_of(PROGRAMS / "simulated" / "spawned_processes.py")
    assert out.splitlines() == [f"NVIDIA A100-SXM4-80GB {4 << 20}"] * 2


of_each_thread = threading.local()


def a_thread_of_autograd_keeps_an_object() -> None:
    def keep(_: Any) -> None:
        of_each_thread.kept = Kept()

    x = torch.ones(2, device="cuda", requires_grad=True)
    x.register_hook(keep)
    (x * 2).sum().backward()


def test_autograds_threads_end_before_the_interpreter() -> None:
    """A thread that freed a Python object after the interpreter's end would crash the process."""
    out = output_of(a_thread_of_autograd_keeps_an_object)
    assert out.splitlines()[-1] == "its own thread: True"


def a_child_ends() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    (x * 2).sum().backward()
    began = time.monotonic()
    if os.fork() == 0:
        sys.exit(0)
    _, status = os.wait()
    print("ended", status, time.monotonic() - began < 5, flush=True)


def test_a_forked_child_ends_without_its_parents_threads() -> None:
    assert output_of(a_child_ends).splitlines()[-1] == "ended 0 True"
