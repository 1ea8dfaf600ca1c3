"""Behaviours of processes: forking, spawning, exiting, and changing allocator settings."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from tests.gpu.behaviours.behaviour import Observed, anything, at_most, behaviour
from tests.gpu.behaviours.tools import GIB, MIB, empty, error_of

TIMEOUT_SECONDS = 90


def installed_allocator() -> str:
    """Returns the name of plimsoll's allocator in this process; "torch" if none is installed."""
    module: Any = sys.modules.get("plimsoll.torch.live.live_engines")
    installed = None if module is None else module._installed
    return "torch" if installed is None else str(installed.choice.allocator)


def run_python(text: str) -> list[object]:
    """Runs a program. Returns its exit status and its output."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return [done.returncode, done.stdout, done.stderr[-3000:]]


@behaviour()
def forked_children_end_cleanly() -> Observed:
    return {
        "end": run_python("""
import os, sys, torch, warnings
warnings.simplefilter("ignore")  # it names the process
x = torch.ones(1000, device="cuda")
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    y = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), x.sum().item())
""")
    }


@behaviour()
def a_process_ends_cleanly_with_all_in_use() -> Observed:
    return {
        "end": run_python("""
import atexit, torch
x = torch.ones(1000, device="cuda", requires_grad=True)
(x * 2).sum().backward()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = torch.ones(1 << 20, device="cuda")
y.record_stream(torch.cuda.current_stream())
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    z = torch.ones(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = z * 2
graph.replay()
torch.cuda.memory._record_memory_history()
torch.cuda._sleep(100_000_000)
del y
atexit.register(lambda: print(torch.cuda.memory_allocated() > 0))
print("done")
""")
    }


def _use_cuda(answers: Any) -> None:
    answers.put(error_of(lambda: torch.ones(1, device="cuda")))


@behaviour()
def a_forked_child_may_not_use_cuda() -> Observed:
    tensor = empty(MIB)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_use_cuda, args=(answers,))
    process.start()
    process.join(TIMEOUT_SECONDS)
    seen: Observed = {
        "status": process.exitcode,
        "error": answers.get() if process.exitcode == 0 else None,
    }
    del tensor
    return seen


def _compute(answers: Any) -> None:
    value = (torch.ones(MIB, device="cuda") * 2).sum().item()
    answers.put(
        [
            value,
            torch.cuda.memory_allocated(),
            installed_allocator() == os.environ["PLIMSOLL_ALLOCATOR"],
        ]
    )


@behaviour()
def spawned_children_have_the_same_allocator() -> Observed:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_compute, args=(answers,))
    process.start()
    process.join(TIMEOUT_SECONDS)
    return {
        "status": process.exitcode,
        "answer": answers.get() if process.exitcode == 0 else None,
    }


def set_settings(conf: str) -> list[object]:
    """Changes settings. Returns the error, and all warnings except FutureWarning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = error_of(lambda: torch.cuda.memory._set_allocator_settings(conf))
    others = [str(w.message) for w in caught if not issubclass(w.category, FutureWarning)]
    return [error, others]


def outcome(function: Callable[[], object]) -> str:
    """Returns the type of the error that a call raises, or "done"."""
    return (error_of(function) or ["done"])[0]


# Only plimsoll warns about settings that are changed after the first allocation (docs/live.md).
@behaviour(own_process=True, either={"late_warnings": anything})
def settings_after_the_start() -> Observed:
    first = torch.ones(MIB, device="cuda")
    late = set_settings("garbage_collection_threshold:0.5")
    second = torch.ones(12 * MIB, device="cuda")
    bad = set_settings("no_such_setting:1")
    snapshot = torch.cuda.memory._snapshot()
    return {
        "late_error": late[0],
        "late_warnings": late[1],
        "bad_error": bad[0],
        "sums": [first.sum().item(), second.sum().item()],
        "reported": snapshot["allocator_settings"].get("garbage_collection_threshold"),
    }


@behaviour(own_process=True, elastic={"segments": anything, "expandable": anything})
def settings_before_the_start() -> Observed:
    early = set_settings("per_process_memory_fraction:0.5,large_segment_size_mb:40")
    tensors = [empty(3 * MIB), empty(15 * MIB)]
    total = torch.cuda.get_device_properties(0).total_memory
    segments = torch.cuda.memory_snapshot()
    seen: Observed = {
        "early": early,
        "fraction": torch.cuda.memory.get_per_process_memory_fraction(),
        "more_than_allowed": outcome(lambda: empty(int(total * 0.55))),
        "less": outcome(lambda: empty(GIB)),
        "segments": sorted(segment["total_size"] for segment in segments),
        "expandable": sorted({segment["is_expandable"] for segment in segments}),
    }
    del tensors
    return seen


@behaviour(own_process=True, elastic={"reserved": at_most, "expandable": anything})
def settings_of_expandable_segments() -> Observed:
    early = set_settings("expandable_segments:True")
    tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(10)]
    del tensors[::2]
    large = torch.full((7 * MIB,), 3.0, device="cuda")
    return {
        "early": early,
        "values": [tensor.mean().item() for tensor in [*tensors, large]],
        "expandable": sorted({s["is_expandable"] for s in torch.cuda.memory_snapshot()}),
        "reserved": torch.cuda.memory_reserved(),
        "allocated": torch.cuda.memory_allocated(),
    }


@behaviour(own_process=True)
def asking_before_the_start_starts_nothing() -> Observed:
    seen: Observed = {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "statistics": torch.cuda.memory_stats(),
        "emptied": error_of(torch.cuda.empty_cache),
        "initialized": torch.cuda.is_initialized(),
    }
    torch.cuda.init()
    seen["after_init"] = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
    seen["snapshot"] = torch.cuda.memory_snapshot()
    seen["keys"] = len(torch.cuda.memory_stats())
    return seen
