"""Records the memory histories of small programs. Each exercises one rule of the allocator.

Run it on a machine with one NVIDIA GPU and PyTorch 2.9 or later (written for 2.11 on an H100)::

    python tests/gpu/record.py OUT_DIR              # every program, about two minutes
    python tests/gpu/record.py OUT_DIR churn        # every variant of one workload
    python tests/gpu/record.py OUT_DIR churn.round4 streams.limited
    python tests/gpu/record.py --list               # each program, and what it exercises

A program is named WORKLOAD.TAG and runs in a process of its own, because PyTorch reads
``PYTORCH_CUDA_ALLOC_CONF`` once. Each program leaves these files in OUT_DIR:

- ``NAME.pickle.gz``: what ``torch.cuda.memory._dump_snapshot`` writes, compressed;
- ``NAME.json``: the program's settings, and ``memory_stats()`` taken right after the dump;
- ``NAME.error.txt`` instead of both files, if the program failed or this PyTorch lacks what the
  program needs.

In the JSON, ``fraction`` is the argument of ``set_per_process_memory_fraction`` before the first
allocation (null if it was never called). ``error`` is the message of the out-of-memory error that
ended the program (null if it ran to its end). ``caught_errors`` lists the first errors that the
program caught. ``actions`` counts, by action, the events that the history still holds. Tensors
still alive when a program ends are alive in its snapshot too. ``--list`` prints a note on each
program. A note that begins with "changed" means that the program changes a limit, a setting or a
counter in mid-run. The history does not record such a change.

Sizes are drawn from seeded generators. Every run of a program therefore makes the same requests,
except requests that depend on GPU timing or thread scheduling. A program's memory limit is a share
of the card's memory. Up to ``--jobs`` programs run in parallel on the card. For the default number
of jobs, a card with 40 GiB or more has enough memory.

Exit status: 0 if each program was recorded or is not supported here, 1 if one failed, 2 if the
input is bad or there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import io
import json
import math
import os
import pickle
import queue
import random
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch

KIB = 1 << 10
MIB = 1 << 20
MAX_ENTRIES = 100_000
MAX_CAUGHT = 50
PROGRAM_TIMEOUT_SECONDS = 150
DONE, FAILED, CANNOT_RUN, UNSUPPORTED = 0, 1, 2, 3
OUTPUT_SUFFIXES = (".pickle.gz", ".json", ".error.txt")


class UnsupportedError(Exception):
    """Raised if this PyTorch lacks what a program exercises; the program is then skipped."""


@dataclasses.dataclass
class Run:
    """The inputs of a program: a random generator, the card's size, a list for caught errors."""

    rng: random.Random
    total_memory: int
    caught: list[str] = dataclasses.field(default_factory=list)

    def share(self, part: float) -> int:
        """Returns the fraction `part` of the card's memory, in bytes."""
        return int(part * self.total_memory)


class Heap:
    """Device tensors that are kept alive, with methods that allocate more or free some of them."""

    def __init__(self, run: Run, rng: random.Random | None = None) -> None:
        """Makes an empty heap. Its methods draw from `rng`, by default from `run.rng`."""
        self.run = run
        self.rng = rng or run.rng
        self.tensors: list[torch.Tensor] = []
        self.requested_bytes = 0

    def take(self, size: int) -> torch.Tensor:
        """Allocates `size` bytes on the current stream."""
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.tensors.append(tensor)
        self.requested_bytes += size
        return tensor

    def try_take(self, size: int) -> bool:
        """Allocates `size` bytes; if memory runs out, notes the error and returns False."""
        try:
            self.take(size)
        except torch.OutOfMemoryError as problem:
            self.run.caught.append(str(problem))
            return False
        return True

    def pop(self, index: int) -> torch.Tensor:
        """Removes and returns the tensor at `index`; moves the last tensor to that index."""
        tensors = self.tensors
        tensors[index], tensors[-1] = tensors[-1], tensors[index]
        tensor = tensors.pop()
        self.requested_bytes -= tensor.numel()
        return tensor

    def drop_random(self) -> None:
        """Frees one tensor, if there is any."""
        if self.tensors:
            self.pop(self.rng.randrange(len(self.tensors)))

    def drop_share(self, part: float) -> None:
        """Frees the fraction `part` of the tensors, but at least one tensor."""
        for _ in range(max(1, int(part * len(self.tensors)))):
            self.drop_random()

    def drop_all(self) -> None:
        """Frees every tensor, in random order."""
        while self.tensors:
            self.drop_random()

    def size_between(self, low: int, high: int) -> int:
        """Draws a size in bytes whose logarithm is uniform."""
        return int(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def churn(self, steps: int, cap: int, high: int = 200 * MIB, period: int = 250) -> None:
        """Allocates and frees at random; the heap grows in one phase and shrinks in the next.

        At most `cap` bytes are alive. `high` is the largest request. A phase has `period` steps.
        After an out-of-memory error, the method frees a third of the tensors and continues.
        """
        for step in range(steps):
            growing = step // period % 2 == 0
            if self.rng.random() < (0.72 if growing else 0.38):
                size = self.size_between(1, high)
                while self.tensors and self.requested_bytes + size > cap:
                    self.drop_random()
                if not self.try_take(size):
                    self.drop_share(1 / 3)
            else:
                self.drop_random()


def record_history(max_entries: int = MAX_ENTRIES, stacks: bool = False) -> None:
    """Starts PyTorch's memory history, with Python stacks if asked."""
    record: Callable[..., None] = torch.cuda.memory._record_memory_history
    if stacks:
        record("all", context="all", stacks="python", max_entries=max_entries)
    else:
        record("all", context=None, max_entries=max_entries)


def set_allocator_settings(settings: str) -> None:
    """Changes the allocator's settings in mid-run, by the function that this PyTorch has."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if setter is None:
        setter = torch.cuda.memory._set_allocator_settings
    setter(settings)


def sleep(cycles: int) -> None:
    """Keeps the current stream busy for `cycles` clock cycles. 1.7 million take about 1 ms."""
    kernel: Callable[[int], None] = torch.cuda._sleep
    kernel(cycles)


def new_stream() -> torch.cuda.Stream:
    """Returns a side stream."""
    make: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
    return make()


def new_pool(**options: bool) -> torch.cuda.MemPool:
    """Returns a private pool. Raises UnsupportedError if this PyTorch lacks an option."""
    make: Callable[..., torch.cuda.MemPool] = torch.cuda.MemPool
    try:
        return make(**options)
    except TypeError as problem:
        raise UnsupportedError(f"MemPool: {problem}") from problem


@contextlib.contextmanager
def inside(pool: torch.cuda.MemPool, stream: torch.cuda.Stream | None = None) -> Iterator[None]:
    """Sends allocations to the pool, on the given stream or the current one."""
    with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
        yield


# The programs. Their results stay alive until the snapshot is written.


def churn(run: Run, steps: int = 4000, cap: float = 0.05, high: int = 200 * MIB) -> object:
    """Allocates and frees at random. Live tensors take at most the share `cap` of the card."""
    heap = Heap(run)
    heap.churn(steps, run.share(cap), high)
    return heap


def limited_churn(run: Run, steps: int = 1500, most_ooms: int = 60) -> object:
    """Requests more than the memory limit allows, and halves each refused request until it fits."""
    heap = Heap(run)
    for _ in range(steps):
        if run.rng.random() < 0.35:
            heap.drop_random()
            continue
        size = heap.size_between(KIB, 400 * MIB)
        while not heap.try_take(size):
            size //= 2
            if size < MIB or run.rng.random() < 0.3:
                heap.drop_share(0.2)
        if len(run.caught) >= most_ooms:
            heap.drop_share(0.5)
            most_ooms += most_ooms // 10
    return heap


def empty_cache(run: Run) -> object:
    """Empties the cache again and again, up to three times in a row, with some blocks alive."""
    heap, extra = Heap(run), Heap(run)
    for turn in range(20):
        heap.churn(80, run.share(0.03), period=40)
        for _ in range(1 + turn % 3):
            torch.cuda.empty_cache()
        for size in (30 * MIB + turn * MIB, 3 * MIB, 700):
            extra.take(size)
        extra.drop_all()
        torch.cuda.empty_cache()
        for size in (700, 3 * MIB, 30 * MIB + turn * MIB):
            extra.take(size)
            if turn % 4 == 0:
                torch.cuda.empty_cache()
        if turn % 2:
            extra.drop_share(0.5)
        if turn % 7 == 6:
            heap.drop_all()
            torch.cuda.empty_cache()
    return heap, extra


def streams(run: Run, steps: int = 500, cap: float = 0.04, high: int = 100 * MIB) -> object:
    """Allocates on four streams, and frees blocks that another stream's long kernels still use."""
    heap = Heap(run)
    all_streams = [torch.cuda.current_stream(), *(new_stream() for _ in range(3))]
    for step in range(steps):
        owner, user = run.rng.choices(all_streams, k=2)
        size = heap.size_between(1, high)
        while heap.tensors and heap.requested_bytes + size > run.share(cap):
            heap.drop_random()
        with torch.cuda.stream(owner):
            if not heap.try_take(size):
                heap.drop_share(1 / 3)
                continue
        if run.rng.random() < 0.7:
            with torch.cuda.stream(user):
                sleep(run.rng.randrange(200_000, 4_000_000))
            heap.tensors[-1].record_stream(user)
            if run.rng.random() < 0.4:
                heap.pop(len(heap.tensors) - 1)
        if run.rng.random() < 0.4:
            heap.drop_random()
        if step % 100 == 99:
            torch.cuda.synchronize()
    return heap


def two_users(run: Run, turns: int = 80) -> object:
    """Frees a block that two streams still use. PyTorch can reuse it once both have finished."""
    heap = Heap(run)
    short, long = new_stream(), new_stream()
    for turn in range(turns):
        heap.take(heap.size_between(KIB, 60 * MIB))
        used = heap.tensors[-1]
        for stream, cycles in ((short, 300_000), (long, 3_000_000)):
            with torch.cuda.stream(stream):
                sleep(cycles)
            used.record_stream(stream)
        del used
        heap.pop(len(heap.tensors) - 1)
        for _ in range(10):
            heap.take(heap.size_between(KIB, 4 * MIB))
            if turn % 8 == 0:
                time.sleep(0.0005)
        heap.drop_share(0.5)
        if turn % 20 == 19:
            long.synchronize()
    return heap


def threads(run: Run, count: int = 4, steps: int = 500) -> object:
    """Runs threads, each on its own stream. Each thread also frees tensors of another thread."""
    together = threading.Barrier(count)
    handed: list[queue.SimpleQueue[torch.Tensor]] = [queue.SimpleQueue() for _ in range(count)]

    def work(number: int) -> Heap:
        heap = Heap(run, random.Random(number))
        together.wait()
        with torch.cuda.stream(new_stream()):
            for _ in range(steps):
                heap.take(heap.size_between(64, 40 * MIB))
                choice = heap.rng.random()
                if choice < 0.15:
                    handed[(number + 1) % count].put(heap.pop(len(heap.tensors) - 1))
                elif choice < 0.9:
                    heap.drop_random()
                with contextlib.suppress(queue.Empty):
                    handed[number].get_nowait()
                while heap.requested_bytes > 600 * MIB:
                    heap.drop_random()
        return heap

    with ThreadPoolExecutor(count) as pool:
        heaps = [future.result() for future in [pool.submit(work, n) for n in range(count)]]
    return heaps, handed


def private_pools(run: Run) -> object:
    """Uses two private pools and the default pool; tensors outlive one of the private pools."""
    common, first_heap, second_heap = Heap(run), Heap(run), Heap(run)
    first, second, side = new_pool(), new_pool(), new_stream()
    for turn in range(12):
        with inside(first, side if turn % 3 == 2 else None):
            first_heap.churn(50, run.share(0.01), 60 * MIB, period=25)
        with inside(second):
            second_heap.churn(50, run.share(0.01), 60 * MIB, period=25)
        common.churn(50, run.share(0.01), 60 * MIB, period=25)
        if turn % 4 == 3:
            torch.cuda.empty_cache()
    with inside(second):
        torch.cuda.empty_cache()
    first_heap.drop_all()
    torch.cuda.empty_cache()
    common.churn(50, run.share(0.01), 60 * MIB, period=25)
    del first
    torch.cuda.empty_cache()
    common.churn(50, run.share(0.01), 60 * MIB, period=25)
    second_heap.drop_share(0.5)
    del second
    torch.cuda.empty_cache()
    second_heap.drop_share(0.5)
    common.churn(50, run.share(0.01), 60 * MIB, period=25)
    torch.cuda.empty_cache()
    second_heap.drop_all()
    torch.cuda.empty_cache()
    return common


def graphs(run: Run) -> object:
    """Captures a training step and a forward pass in one pool; replays and resets both graphs."""
    heap = Heap(run)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    ).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, wanted = torch.randn(512, 256, device="cuda"), torch.randn(512, 256, device="cuda")

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        backward: Callable[[], None] = loss.backward
        backward()
        optimizer.step()

    side = new_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    for turn in range(2):
        heap.churn(60, run.share(0.01), 30 * MIB, period=30)
        step, forward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(step):
            train()
        heap.churn(60, run.share(0.01), 30 * MIB, period=30)
        with torch.cuda.graph(forward, pool=step.pool()), torch.no_grad():
            output = model(inputs)
        for _ in range(3):
            step.replay()
            forward.replay()
            heap.churn(20, run.share(0.01), 30 * MIB, period=10)
        torch.cuda.synchronize()
        step.reset()
        torch.cuda.empty_cache()
        heap.churn(20, run.share(0.01), 30 * MIB, period=10)
        forward.reset()
        if turn:
            optimizer.zero_grad(set_to_none=True)
        del step, forward, output
        torch.cuda.empty_cache()
    return heap, model, optimizer


def graph_streams(run: Run) -> object:
    """Captures a graph on two streams; during the capture, frees a block that both streams use."""
    heap = Heap(run)
    inputs, side = torch.randn(1024, 1024, device="cuda"), new_stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        here = torch.cuda.current_stream()
        outputs = []
        for _ in range(6):
            side.wait_stream(here)
            with torch.cuda.stream(side):
                doubled = inputs * 2
            here.wait_stream(side)
            doubled.record_stream(here)
            outputs.append(doubled + 1)
            del doubled
            outputs.append(inputs + 3)
            outputs.pop(0)
    heap.churn(60, run.share(0.01), 30 * MIB, period=30)
    graph.replay()
    torch.cuda.synchronize()
    heap.churn(60, run.share(0.01), 30 * MIB, period=30)
    graph.reset()
    del outputs
    torch.cuda.empty_cache()
    return heap, inputs


def pool_on_oom(run: Run, delete: bool = False) -> object:
    """Fills the card, so that a `use_on_oom` pool must serve requests made outside the pool."""
    pool = new_pool(use_on_oom=True)
    heap, inner = Heap(run), Heap(run)
    with inside(pool):
        for size in (200 * MIB, 200 * MIB, 100 * MIB, 64 * MIB, 12 * MIB, 5 * MIB, 3000, 700):
            inner.take(size)
    inner.pop(5)
    inner.drop_share(0.75)
    while heap.try_take(heap.size_between(20 * MIB, 150 * MIB)):
        heap.try_take(700)
    for turn in range(12):
        heap.drop_share(0.2)
        while heap.try_take(heap.size_between(100 * KIB, 150 * MIB)):
            pass
        if turn % 4 == 3:
            heap.drop_share(0.5)
            torch.cuda.empty_cache()
        if turn == 6:
            with inside(pool):
                inner.try_take(40 * MIB)
    if delete:
        del pool
        for _ in range(4):
            heap.drop_share(0.3)
            torch.cuda.empty_cache()
            while heap.try_take(heap.size_between(MIB, 150 * MIB)):
                pass
        return heap, inner
    return heap, inner, pool


def pool_no_split(run: Run) -> object:
    """Uses a pool that never splits its segments, beside the default pool."""
    pool = new_pool(no_split=True)
    heap, inner = Heap(run), Heap(run)
    for _ in range(10):
        with inside(pool):
            for size in (700, 100 * KIB, MIB, 3 * MIB, 9 * MIB, 10 * MIB, 33 * MIB):
                inner.take(size)
            inner.churn(60, run.share(0.01), 60 * MIB, period=30)
        heap.churn(60, run.share(0.01), 60 * MIB, period=30)
        inner.drop_share(0.6)
    torch.cuda.empty_cache()
    return heap, inner, pool


def fraction_changed(run: Run) -> object:
    """Sets a limit in mid-run, lowers it below the reserved memory, and removes it."""
    heap = Heap(run)
    set_fraction: Callable[[float], None] = torch.cuda.set_per_process_memory_fraction
    heap.churn(400, run.share(0.03))
    for fraction in (0.04, 0.02, 0.01, 1.0):
        set_fraction(fraction)
        heap.churn(400, run.share(0.03))
    return heap


def settings_changed(run: Run) -> object:
    """Changes expandable_segments in mid-run, so that segments of both kinds exist together."""
    heap = Heap(run)
    heap.churn(500, run.share(0.03))
    for settings in ("expandable_segments:True", "expandable_segments:False"):
        set_allocator_settings(settings)
        heap.churn(500, run.share(0.03))
        torch.cuda.empty_cache()
        heap.churn(500, run.share(0.03))
    return heap


def late_start(run: Run) -> object:
    """Starts the recording when 500 blocks are alive and 500 have been freed."""
    heap = Heap(run)
    while len(heap.tensors) < 500:
        heap.take(heap.size_between(1, 30 * MIB))
        heap.take(heap.size_between(1, 30 * MIB))
        heap.drop_random()
    record_history()
    heap.drop_share(0.3)
    heap.churn(800, run.share(0.05))
    torch.cuda.empty_cache()
    heap.churn(400, run.share(0.05))
    return heap


def stats_reset(run: Run) -> object:
    """Resets the peaks and totals in mid-run."""
    heap = Heap(run)
    heap.churn(500, run.share(0.04))
    heap.drop_share(0.7)
    torch.cuda.reset_peak_memory_stats()
    heap.churn(300, run.share(0.02))
    torch.cuda.reset_accumulated_memory_stats()
    heap.churn(300, run.share(0.02))
    torch.cuda.reset_peak_memory_stats()
    heap.drop_share(0.5)
    return heap


def transformer(run: Run, steps: int = 3) -> object:
    """Trains two encoder layers in half precision with a gradient scaler."""
    torch.manual_seed(run.rng.randrange(1 << 30))
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = torch.nn.Sequential(
        torch.nn.Embedding(2000, 128), encoder, torch.nn.Linear(128, 2000)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(steps):
        tokens = torch.randint(0, 2000, (8, 48 + 16 * step), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        scale: Callable[[torch.Tensor], torch.Tensor] = scaler.scale
        backward: Callable[[], None] = scale(loss).backward
        backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return model, optimizer, scaler


def two_snapshots(run: Run) -> object:
    """Takes a snapshot in mid-run; the history then has an event for that snapshot."""
    heap = Heap(run)
    snapshot: Callable[[], object] = torch.cuda.memory._snapshot
    heap.churn(600, run.share(0.04))
    snapshot()
    heap.churn(600, run.share(0.04))
    return heap


def boundaries(run: Run) -> object:
    """Allocates blocks at and around the allocator's size thresholds; frees in several orders."""
    edges = (512, MIB, 2 * MIB, 10 * MIB, 12 * MIB, 19 * MIB, 20 * MIB, 32 * MIB, 64 * MIB)
    sizes = [0, 0, 1, 1, *(edge + delta for edge in edges for delta in (-1, 0, 1, 512))]
    kept: list[torch.Tensor] = []
    for turn in range(16):
        order = sorted(sizes, reverse=turn % 2 == 1)
        if turn >= 2:
            run.rng.shuffle(order)
        heap = Heap(run)
        for size in order:
            heap.take(size)
        if turn % 4 == 0:
            while heap.tensors:
                heap.pop(len(heap.tensors) - 1)
        elif turn % 4 == 1:
            heap.tensors.reverse()
            while heap.tensors:
                heap.pop(len(heap.tensors) - 1)
        else:
            heap.drop_share(0.7)
            for size in order[::2]:
                heap.take(size)
            if turn % 4 == 3:
                kept.extend(heap.tensors[:4])
            heap.drop_all()
        if turn % 5 == 4:
            torch.cuda.empty_cache()
    return kept


def ends(run: Run, freed: bool, emptied: bool = False) -> object:
    """Allocates blocks; then frees them if `freed`, and empties the cache if `emptied`."""
    heap = Heap(run)
    while len(heap.tensors) < 300:
        heap.take(heap.size_between(1, 60 * MIB))
        if run.rng.random() < 0.3:
            heap.drop_random()
    if freed:
        heap.drop_all()
    if emptied:
        torch.cuda.empty_cache()
    return heap


@dataclasses.dataclass(frozen=True)
class Program:
    """A program to record: its function, its settings, and how its history is kept.

    `name` is WORKLOAD.TAG. `fraction` is the share of the card's memory the process may take.
    If a program is `late`, its function starts the recording.
    """

    name: str
    function: Callable[[Run], object]
    notes: str
    conf: str = ""
    fraction: float | None = None
    max_entries: int = MAX_ENTRIES
    stacks: bool = False
    late: bool = False

    @property
    def workload(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]

    @property
    def tag(self) -> str:
        """The part of the name after the first dot."""
        return self.name.partition(".")[2]


EXPANDABLE = "expandable_segments:True"
LISTED = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
LISTED_FROM_1 = "roundup_power2_divisions:[1:16,64:8,256:4,>:1]"
TIGHT = partial(churn, steps=6000, cap=0.045)

PROGRAMS = (
    Program("churn.default", churn, "best fit, splitting and merging"),
    Program("churn.split64", churn, "blocks above a maximum split size", "max_split_size_mb:64"),
    Program(
        "churn.split128round40",
        churn,
        "how much larger an unsplit block may be",
        "max_split_size_mb:128,max_non_split_rounding_mb:40",
    ),
    Program("churn.round4", churn, "sizes rounded in quarters", "roundup_power2_divisions:4"),
    Program(
        "churn.roundlist",
        partial(churn, cap=0.12, high=1500 * MIB),
        "rounding by size class, first class 256 MiB; requests up to 1.5 GiB",
        LISTED,
    ),
    Program("churn.roundlist1", churn, "rounding by size class, from 1 MiB", LISTED_FROM_1),
    Program("churn.expandable", churn, "segments that grow", EXPANDABLE),
    Program("churn.segment64", churn, "64 MiB segments for 1-10 MiB", "large_segment_size_mb:64"),
    Program(
        "churn.gc60",
        TIGHT,
        "garbage collection above 60 % of the limit",
        "garbage_collection_threshold:0.6",
        0.05,
    ),
    Program(
        "churn.gc50split64",
        TIGHT,
        "garbage collection with a maximum split size",
        "garbage_collection_threshold:0.5,max_split_size_mb:64",
        0.05,
    ),
    Program(
        "churn.fraction_conf",
        TIGHT,
        "the limit given in the settings",
        "per_process_memory_fraction:0.05",
    ),
    Program(
        "churn.fraction_conf_gc60",
        TIGHT,
        "garbage collection under a limit given in the settings",
        "per_process_memory_fraction:0.05,garbage_collection_threshold:0.6",
    ),
    Program(
        "churn.expandable_limited",
        partial(churn, cap=0.029),
        "retries at the limit unmap pages",
        EXPANDABLE,
        0.03,
    ),
    Program(
        "churn.expandable_round8",
        churn,
        "segments that grow, with rounding",
        EXPANDABLE + ",roundup_power2_divisions:8",
    ),
    Program("limited.default", limited_churn, "many retries and caught OOMs", "", 0.02),
    Program(
        "limited.split64",
        limited_churn,
        "many retries and caught OOMs; oversize blocks released first",
        "max_split_size_mb:64",
        0.02,
    ),
    Program(
        "limited.expandable",
        limited_churn,
        "many retries and caught OOMs; partial unmapping",
        EXPANDABLE,
        0.02,
    ),
    Program("empty_cache.default", empty_cache, "empty_cache at many points"),
    Program("empty_cache.expandable", empty_cache, "empty_cache unmaps whole pages", EXPANDABLE),
    Program("streams.default", streams, "late free_completed across four streams"),
    Program("streams.expandable", streams, "late free_completed, growing segments", EXPANDABLE),
    Program(
        "streams.limited",
        partial(streams, cap=0.0095),
        "a retry waits for the other streams",
        "",
        0.01,
    ),
    Program(
        "streams.expandable_limited",
        partial(streams, cap=0.0095),
        "a retry waits for the other streams, then unmaps",
        EXPANDABLE,
        0.01,
    ),
    Program("two_users.default", two_users, "a block recorded on two other streams"),
    Program("two_users.expandable", two_users, "recorded on two other streams", EXPANDABLE),
    Program("threads.default", threads, "four threads, a stream each, frees across threads"),
    Program("private_pools.default", private_pools, "MemPool in use, emptied, deleted, outlived"),
    Program("private_pools.expandable", private_pools, "MemPool, growing segments", EXPANDABLE),
    Program("graphs.default", graphs, "graphs captured into a shared pool, replayed, reset"),
    Program("graphs.expandable", graphs, "captured graphs, growing segments", EXPANDABLE),
    Program("graph_streams.default", graph_streams, "record_stream inside a capture"),
    Program("pool_on_oom.default", pool_on_oom, "a pool that helps at OOM", "", 0.02),
    Program(
        "pool_on_oom.deleted",
        partial(pool_on_oom, delete=True),
        "a pool that helps at OOM, then is deleted",
        "",
        0.02,
    ),
    Program("pool_on_oom.expandable", pool_on_oom, "helps at OOM, growing", EXPANDABLE, 0.02),
    Program("pool_no_split.default", pool_no_split, "a pool that never splits"),
    Program("pool_no_split.expandable", pool_no_split, "never splits, growing", EXPANDABLE),
    Program("fraction_changed.default", fraction_changed, "changed: the limit, in mid-run"),
    Program(
        "fraction_changed.expandable",
        fraction_changed,
        "changed: the limit, in mid-run",
        EXPANDABLE,
    ),
    Program("settings_changed.default", settings_changed, "changed: expandable_segments on, off"),
    Program("ring.default", partial(churn, steps=6000), "history overflows", max_entries=2000),
    Program(
        "ring.expandable",
        partial(churn, steps=6000),
        "history overflows, growing segments",
        EXPANDABLE,
        max_entries=2000,
    ),
    Program("late_start.default", late_start, "recording starts with 500 blocks alive", late=True),
    Program(
        "late_start.expandable",
        late_start,
        "recording starts with 500 blocks alive, growing segments",
        EXPANDABLE,
        late=True,
    ),
    Program("stats_reset.default", stats_reset, "changed: peak and accumulated statistics reset"),
    Program("transformer.stacks", transformer, "a real training loop, with stacks", stacks=True),
    Program("two_snapshots.default", two_snapshots, "a snapshot event in the history"),
    Program("boundaries.default", boundaries, "sizes around every threshold"),
    Program("boundaries.expandable", boundaries, "around every threshold, growing", EXPANDABLE),
    Program("boundaries.split32", boundaries, "around thresholds", "max_split_size_mb:32"),
    Program("ends.live", partial(ends, freed=False), "everything alive at the end"),
    Program("ends.freed", partial(ends, freed=True), "everything freed at the end"),
    Program(
        "ends.emptied", partial(ends, freed=True, emptied=True), "freed, and the cache emptied"
    ),
    Program(
        "ends.emptied_expandable",
        partial(ends, freed=True, emptied=True),
        "freed, and the cache emptied, growing segments",
        EXPANDABLE,
    ),
)


class PlainUnpickler(pickle.Unpickler):
    """Reads back the plain containers of a snapshot and refuses everything else."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Raises pickle.UnpicklingError, since a snapshot names no classes."""
        raise pickle.UnpicklingError(f"{module_name}.{global_name} in a snapshot")


def record(program: Program, out: Path) -> object:
    """Runs one program in this process and writes its two files to `out`.

    Returns the objects that the program kept alive, so that the process can end without freeing
    them.
    """
    start_cuda: Callable[[], None] = torch.cuda.init
    start_cuda()
    total_memory: int = torch.cuda.get_device_properties(0).total_memory
    if program.fraction is not None:
        torch.cuda.set_per_process_memory_fraction(program.fraction)
    if not program.late:
        record_history(program.max_entries, program.stacks)
    run = Run(random.Random(zlib.crc32(program.workload.encode())), total_memory)
    kept: object = None
    error: str | None = None
    started = time.perf_counter()
    try:
        kept = program.function(run)
    except torch.OutOfMemoryError as problem:
        error = str(problem)
    seconds = time.perf_counter() - started

    raw = out / f"{program.name}.pickle"
    dump: Callable[[str], None] = torch.cuda.memory._dump_snapshot
    dump(str(raw))
    stats = dict(torch.cuda.memory_stats())
    max_allocated = torch.cuda.max_memory_allocated()
    max_reserved = torch.cuda.max_memory_reserved()

    data = raw.read_bytes()
    raw.unlink()
    (out / f"{program.name}.pickle.gz").write_bytes(gzip.compress(data, mtime=0))
    traces = PlainUnpickler(io.BytesIO(data)).load()["device_traces"]
    row = {
        "workload": program.workload,
        "tag": program.tag,
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(0),
        "conf": program.conf,
        "fraction": program.fraction,
        "total_memory": total_memory,
        "error": error,
        "seconds": round(seconds, 3),
        "stats": stats,
        "max_memory_allocated": max_allocated,
        "max_memory_reserved": max_reserved,
        "notes": program.notes,
        "max_entries": program.max_entries,
        "trace_entries": [len(trace) for trace in traces],
        "actions": dict(Counter(event["action"] for trace in traces for event in trace)),
        "caught_errors": run.caught[:MAX_CAUGHT],
    }
    (out / f"{program.name}.json").write_text(json.dumps(row, indent=1) + "\n")
    return kept


def environment(conf: str) -> dict[str, str]:
    """Returns this process's environment with `conf` as the only allocator setting."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    result = {name: value for name, value in os.environ.items() if name not in names}
    result.setdefault("OMP_NUM_THREADS", "2")
    result["PYTHONFAULTHANDLER"] = "1"
    if conf:
        result["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return result


def describe_failure(returncode: int, stderr: str) -> tuple[int, str]:
    """Returns FAILED or UNSUPPORTED, and the line of a failed child's stderr that says why."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "nrecognized" in line]
    text = (told or lines or [f"exit status {returncode}"])[-1]
    unsupported = returncode == UNSUPPORTED or "nrecognized" in text
    return (UNSUPPORTED if unsupported else FAILED), text


def spawn(program: Program, out: Path) -> tuple[int, str]:
    """Records one program in a process of its own. Returns its status and an error line."""
    for suffix in OUTPUT_SUFFIXES:
        (out / (program.name + suffix)).unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), str(out), program.name, "--child"]
    try:
        done = subprocess.run(
            command,
            env=environment(program.conf),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        status, text, stderr = FAILED, f"no end after {PROGRAM_TIMEOUT_SECONDS} s", ""
    else:
        if done.returncode == DONE:
            return DONE, ""
        stderr = done.stderr
        status, text = describe_failure(done.returncode, stderr)
    for suffix in (".pickle", ".pickle.gz", ".json"):
        (out / (program.name + suffix)).unlink(missing_ok=True)
    (out / f"{program.name}.error.txt").write_text(f"{text}\n\n{stderr}")
    return status, text


def table_row(name: str, out: Path) -> str:
    """Returns a recorded program's line for the table that `record_all` prints."""
    row = json.loads((out / f"{name}.json").read_text())
    actions, stats = row["actions"], row["stats"]
    segments = sum(count for action, count in actions.items() if action.startswith("segment_"))
    return (
        f"{name:<28}{sum(row['trace_entries']):>8}{segments:>10}{stats['num_alloc_retries']:>9}"
        f"{stats['num_ooms']:>6}{row['max_memory_reserved'] / MIB:>14.0f}{row['seconds']:>9.2f}"
        + ("  ended by OOM" if row["error"] else "")
    )


def record_all(programs: Sequence[Program], out: Path, jobs: int) -> int:
    """Records programs, `jobs` at a time. Prints a line for each; returns the exit status."""
    started, worst = time.perf_counter(), DONE
    print(
        f"{'name':<28}{'events':>8}{'segments':>10}{'retries':>9}{'ooms':>6}"
        f"{'reserved MiB':>14}{'seconds':>9}",
        flush=True,
    )
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda program: spawn(program, out), programs)
        for program, (status, text) in zip(programs, results, strict=True):
            if status == DONE:
                print(table_row(program.name, out), flush=True)
                continue
            word = "skipped" if status == UNSUPPORTED else "FAILED"
            print(f"{program.name:<28}{word}: {text}", flush=True)
            worst = max(worst, FAILED if status == FAILED else DONE)
    files = list(out.glob("*.pickle.gz"))
    size = sum(file.stat().st_size for file in files) / MIB
    seconds = time.perf_counter() - started
    print(f"{len(files)} traces in {out}, {size:.1f} MiB; {seconds:.0f} s, {jobs} at a time")
    return worst


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Record memory histories of small programs on a CUDA device.",
        epilog="Exit status: 0 recorded, 1 a program failed, 2 bad input or no CUDA device.",
    )
    parser.add_argument("out", metavar="OUT_DIR", type=Path, nargs="?", help="where files go")
    parser.add_argument("names", metavar="NAME", nargs="*", help="WORKLOAD or WORKLOAD.TAG")
    parser.add_argument("--jobs", type=int, default=6, help="programs at a time (default 6)")
    parser.add_argument("--list", action="store_true", help="name the programs and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.out is None and not options.list:
        parser.error("OUT_DIR is missing")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def select(names: Sequence[str]) -> list[Program]:
    """Returns the programs with these names or workloads; all programs if no name is given.

    Raises:
        ValueError: If a name is neither a program's nor a workload's.
    """
    known = {name for program in PROGRAMS for name in (program.name, program.workload)}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(f"no such program: {', '.join(unknown)} (--list names them)")
    return [p for p in PROGRAMS if not names or p.name in names or p.workload in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs from the command line. Returns the exit status."""
    options = parse_arguments(arguments)
    try:
        programs = select(options.names)
    except ValueError as problem:
        print(f"record: {problem}", file=sys.stderr)
        return CANNOT_RUN
    if options.list:
        for program in programs:
            settings = program.conf or "default settings"
            print(f"{program.name:<28}{program.notes} ({settings})")
        return DONE
    if options.child:
        try:
            _kept = record(programs[0], options.out)
        except UnsupportedError as problem:
            print(f"UnsupportedError: {problem}", file=sys.stderr)
            return UNSUPPORTED
        # The files are written. Skip the interpreter's teardown, which adds nothing and may crash.
        os._exit(DONE)
    if not torch.cuda.is_available():
        print("record: no CUDA device is present", file=sys.stderr)
        return CANNOT_RUN
    options.out.mkdir(parents=True, exist_ok=True)
    return record_all(programs, options.out, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
