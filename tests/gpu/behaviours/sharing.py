"""Behaviours of tensors that several processes share."""

from __future__ import annotations

import gc
import subprocess
import sys
from functools import cache
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from tests.gpu.behaviours.behaviour import Observed, UnavailableError, behaviour
from tests.gpu.behaviours.tools import MIB, empty, result_of

TIMEOUT_SECONDS = 60

# A program that duplicates its parent's file descriptor 0 into its own process. 434 and 438 are the
# numbers of the system calls pidfd_open and pidfd_getfd.
FETCH_A_DESCRIPTOR = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
process = libc.syscall(434, os.getppid(), 0)
if process < 0 or libc.syscall(438, process, 0, 0) < 0:
    raise SystemExit(os.strerror(ctypes.get_errno()))
"""


@cache
def why_descriptors_cannot_be_fetched() -> str:
    """Returns why a child cannot duplicate its parent's descriptors; "" if the child can."""
    done = subprocess.run(
        [sys.executable, "-c", FETCH_A_DESCRIPTOR], capture_output=True, text=True, check=False
    )
    return done.stderr.strip()


def require_descriptors() -> None:
    """Raises UnavailableError if processes cannot share memory by descriptors here."""
    if reason := why_descriptors_cannot_be_fetched():
        raise UnavailableError(f"processes cannot fetch each other's descriptors here: {reason}")


def serve(requests: Any, answers: Any) -> None:
    """Applies the parent's requests to the received tensors, until the parent sends "end"."""

    def answer() -> Any:
        name, *tensors = requests.get()
        if name == "end":
            return None
        found = REQUESTS[name](*tensors)
        torch.cuda.synchronize()
        return [found]

    while (answered := result_of(answer)) is not None:
        gc.collect()
        answers.put(answered)


def produce(answers: Any, requests: Any) -> None:
    """Sends tensors to the parent, and keeps them until the parent has released them."""
    base = torch.arange(12 * MIB, dtype=torch.float32, device="cuda")
    small = torch.full((10,), 4.0, device="cuda")
    torch.cuda.synchronize()
    answers.put((base, base[100:200], small))
    requests.get()
    torch.cuda.synchronize()
    answers.put([base[0].item(), small.sum().item()])
    requests.get()


def add_one(*tensors: Any) -> None:
    """Adds one to the shared tensors."""
    for tensor in tensors:
        tensor.add_(1)


def write_one_read_other(one: Any, other: Any) -> list[float]:
    """Writes to one view. Returns the first and the last element of the other view."""
    one.fill_(42)
    return [other[0].item(), other[-1].item()]


def sums(*tensors: Any) -> list[float]:
    """Returns the sums of the shared tensors."""
    return [tensor.double().sum().item() for tensor in tensors]


kept: list[Any] = []


def keep(*tensors: Any) -> int:
    """Keeps the shared tensors after the answer is sent."""
    kept.extend(tensors)
    return len(kept)


def kept_sums() -> list[float]:
    """Returns the sums of the kept tensors."""
    return sums(*kept)


def drop() -> int:
    """Drops the kept tensors."""
    kept.clear()
    return len(kept)


REQUESTS: dict[str, Any] = {
    "keep": keep,
    "kept_sums": kept_sums,
    "drop": drop,
    "add_one": add_one,
    "write_one_read_other": write_one_read_other,
    "sums": sums,
}


class Child:
    """A process that serves requests."""

    def __init__(self) -> None:
        require_descriptors()
        context = multiprocessing.get_context("spawn")
        self._requests, self._answers = context.Queue(), context.Queue()
        self._process = context.Process(target=serve, args=(self._requests, self._answers))
        self._process.start()

    def ask(self, name: str, *tensors: Any) -> Any:
        """Sends tensors. Returns the child's answer."""
        self._requests.put((name, *tensors))
        return self._answers.get(timeout=TIMEOUT_SECONDS)

    def end(self) -> int | None:
        """Asks the child to end. Returns its exit status."""
        self._requests.put(("end",))
        self._process.join(TIMEOUT_SECONDS)
        status: int | None = self._process.exitcode
        if status is None:
            self._process.kill()
        return status


@behaviour()
def a_child_works_on_the_parents_tensors() -> Observed:
    before = torch.cuda.memory_allocated()
    large = torch.full((75 * MIB,), 1.0, device="cuda")
    small = torch.full((10,), 2.0, device="cuda")
    neighbours = [torch.full((50,), float(i), device="cuda") for i in range(5)]
    base = torch.zeros(1000, device="cuda")
    whole = torch.arange(5 * MIB, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    child = Child()
    seen: Observed = {
        "added": child.ask("add_one", large, small),
        "values": [large[0].item(), large[-1].item(), small.sum().item()],
        "neighbours": child.ask("sums", *neighbours),
        "views": child.ask("write_one_read_other", base[100:200], base[150:300]),
        "base": [base[99].item(), base[100].item(), base[199].item(), base[200].item()],
        "offsets": child.ask("sums", whole[10:20], whole[2 * MIB : 2 * MIB + 7], whole),
        "again": child.ask("add_one", large),
        "value": large.double().sum().item(),
    }
    seen["mixed_types"] = child.ask(
        "sums", large[:5].to(torch.int64), torch.ones(3, 4, device="cuda").t()
    )
    seen["status"] = child.end()
    del large, small, neighbours, base, whole
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    seen["left"] = torch.cuda.memory_allocated() - before
    torch.cuda.empty_cache()
    seen["is_usable"] = torch.ones(80 * MIB, device="cuda").sum().item()
    return seen


@behaviour()
def memory_that_is_reused_is_shared_anew() -> Observed:
    child = Child()
    answers = []
    for i in range(12):
        tensor = torch.full((MIB * (1 + i % 3),), float(i), device="cuda")
        torch.cuda.synchronize()
        answers.append(child.ask("sums", tensor))
        del tensor
        if i % 4 == 3:
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
    return {"answers": answers, "status": child.end()}


@behaviour()
def a_parent_works_on_a_childs_tensors() -> Observed:
    require_descriptors()
    before = torch.cuda.memory_allocated()
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=produce, args=(answers, requests))
    process.start()
    base, view, small = answers.get(timeout=TIMEOUT_SECONDS)
    seen: Observed = {
        "base": base[-1].item(),
        "view": view.sum().item(),
        "small": small.sum().item(),
        "is_view": view.data_ptr() - base.data_ptr(),
        "own_allocated": torch.cuda.memory_allocated() - before,
    }
    base.add_(5)
    small.mul_(2)
    view.record_stream(torch.cuda.Stream())
    torch.cuda.synchronize()
    requests.put("look")
    seen["seen_by_child"] = answers.get(timeout=TIMEOUT_SECONDS)
    del base, view, small
    gc.collect()
    requests.put("end")
    process.join(TIMEOUT_SECONDS)
    seen["status"] = process.exitcode
    return seen


@behaviour()
def storages_describe_themselves() -> Observed:
    tensor = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    parts = tensor.untyped_storage()._share_cuda_()
    seen: Observed = {
        "types": [type(part).__name__ for part in parts],
        "device": parts[0],
        "size": parts[2],
    }
    del tensor
    torch.cuda.ipc_collect()
    return seen


def collected(before: int) -> int:
    """Returns the bytes allocated beyond `before`, after collecting garbage and IPC memory."""
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    left: int = torch.cuda.memory_allocated() - before
    return left


@behaviour()
def many_tensors_are_shared_at_once() -> Observed:
    before = torch.cuda.memory_allocated()
    child = Child()
    sizes = [1000 * (1 + i % 7) if i % 10 else MIB * (1 + i % 3) for i in range(200)]
    tensors = [torch.full((size,), float(i), device="cuda") for i, size in enumerate(sizes)]
    torch.cuda.synchronize()
    seen: Observed = {
        "sums": child.ask("sums", *tensors),
        "added": child.ask("add_one", *tensors),
        "values": [[tensor[0].item(), tensor[-1].item()] for tensor in tensors],
        "status": child.end(),
    }
    del tensors
    return {**seen, "left": collected(before)}


@behaviour()
def a_parent_frees_first_and_the_child_still_reads() -> Observed:
    before = torch.cuda.memory_allocated()
    child = Child()
    tensors = [torch.full((8 * MIB,), float(i), device="cuda") for i in range(4)]
    torch.cuda.synchronize()
    seen: Observed = {"kept": child.ask("keep", *tensors)}
    del tensors
    seen["held"] = collected(before)
    torch.cuda.empty_cache()
    others = [torch.full((8 * MIB,), -1.0, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    seen |= {"sums": child.ask("kept_sums"), "dropped": child.ask("drop")}
    del others
    return {**seen, "left": collected(before), "status": child.end()}


@behaviour()
def what_is_shared_stays_while_its_neighbours_move() -> Observed:
    child = Child()
    shared = torch.full((10 * MIB,), 1.0, device="cuda")
    address = shared.data_ptr()
    torch.cuda.synchronize()
    child.ask("keep", shared)
    for i in range(40):
        others = [empty(MIB * (1 + (7 * i + 3 * j) % 37)) for j in range(12)]
        del others[::2]
        larger = empty(MIB * (40 + i))
        del others, larger
        if i % 8 == 7:
            torch.cuda.empty_cache()
    shared.add_(1)
    torch.cuda.synchronize()
    return {
        "stays": shared.data_ptr() == address,
        "read_by_child": child.ask("kept_sums"),
        "written_by_child": [child.ask("add_one", shared), shared.double().sum().item()],
        "status": child.end(),
    }
