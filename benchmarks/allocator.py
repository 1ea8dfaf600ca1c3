"""Times a request and a free under plimsoll's allocators and, on a GPU, under PyTorch's allocator.

    python benchmarks/allocator.py [--program FILE] [--gpu] [--allocator NAME] [RECORDING ...]

Without --gpu, a C++ program runs plimsoll's allocators over simulated drivers. CMake builds that
program from allocator.cpp. With --gpu, plimsoll's allocator and PyTorch's take turns in this
process. This script calls both through the interface that PyTorch itself uses. All allocators get
the same requests: pairs of a request and a free at four sizes, requests and frees in random order,
the requests of the recordings, and random requests from several threads, each on its own stream.
Results go to benchmarks/results/allocator.txt, or allocator_gpu.txt.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from report import RESULTS, heading, save

from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "shared" / "traces"
RECORDINGS = ROOT / "examples" / "recordings"
PROGRAM = ROOT / "build" / "benchmarks" / "allocator"
STREAMS = 8
OPERATION = np.dtype([("slot", np.uint32), ("stream", np.uint32), ("size", np.uint64)])
"""The layout of the struct `Operation` in scenarios.h.

An operation allocates a block for a slot. With size 0 it frees the slot's block.
"""

_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def write_operations(recording: Path, path: Path) -> None:
    """Writes the requests and frees of a recording's first device, for the C++ scenarios."""
    live: dict[int, int] = {}
    unused: list[int] = []
    streams: dict[int, int] = {}
    rows: list[tuple[int, int, int]] = []
    for batch in read_recording(recording).devices[0].batches():
        columns = (batch.action, batch.address, batch.size, batch.stream)
        for action, address, size, stream in zip(*(c.tolist() for c in columns), strict=True):
            if action == Action.ALLOC:
                slot = unused.pop() if unused else len(live)
                live[address] = slot
                number = streams.setdefault(stream, len(streams)) % STREAMS
                rows.append((slot, number, max(size, 1)))
            elif action == Action.FREE_REQUESTED and address in live:
                slot = live.pop(address)
                unused.append(slot)
                rows.append((slot, 0, 0))
    np.array(rows, dtype=OPERATION).tofile(path)


def without_gpu(program: Path, traces: list[Path], repetitions: int) -> str:
    """Runs the C++ program and returns its output."""
    command = [str(program), "--repetitions", str(repetitions), *map(str, traces)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if running.returncode != 0:
        sys.exit(running.returncode)
    return "".join(lines)


def build_library() -> ctypes.CDLL:
    """Loads the library that runs the scenarios inside PyTorch. Compiles it first if necessary."""
    from plimsoll.torch.building.compiler import Recipe, load

    recipe = Recipe(
        name="allocator-benchmark",
        purpose="the allocator benchmark",
        sources=ROOT / "benchmarks" / "scenarios",
        flags=("-O3",),
        libraries=("c10", "c10_cuda"),
        needs_cuda=True,
    )
    library = load(recipe)
    library.plimsoll_benchmark_allocator.restype = ctypes.c_void_p
    library.plimsoll_benchmark_compare.restype = ctypes.c_bool
    return library


def on_gpu(allocator: Any, traces: list[Path], repetitions: int) -> str:
    """Compares plimsoll's allocator with PyTorch's on the first GPU, and returns the output."""
    import torch

    import plimsoll

    torch.cuda.init()
    library = build_library()
    original = library.plimsoll_benchmark_allocator()
    plimsoll.install(allocator)
    ours = library.plimsoll_benchmark_allocator()
    streams = [0, *(torch.cuda.Stream().cuda_stream for _ in range(STREAMS - 1))]
    lines = []

    def note(line: bytes) -> None:
        lines.append(line.decode() + "\n")
        print(lines[-1], end="", flush=True)

    done = library.plimsoll_benchmark_compare(
        ctypes.c_void_p(ours),
        ctypes.c_void_p(original),
        (ctypes.c_uint64 * STREAMS)(*streams),
        ctypes.c_size_t(STREAMS),
        (ctypes.c_char_p * len(traces))(*(str(path).encode() for path in traces)),
        ctypes.c_size_t(len(traces)),
        ctypes.c_int(repetitions),
        _PRINT(note),
    )
    if not done:
        sys.exit(1)
    return "".join(lines)


def main() -> None:
    """Measures the allocators, and prints and saves the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--allocator", default="elastic", choices=["elastic", "native"])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    parser.add_argument("recordings", nargs="*", type=Path)
    arguments = parser.parse_args()
    recordings = arguments.recordings or sorted(TRACES.glob("*.default.pickle.gz"))
    recordings = recordings or sorted(RECORDINGS.glob("*.pickle.gz"))
    head = heading()
    if arguments.gpu:
        head += f"plimsoll is its {arguments.allocator} allocator; calls: cudaMalloc and the like\n"
    else:
        head += "calls: of the simulated driver, which take next to no time here\n"
    print(head)
    with tempfile.TemporaryDirectory() as folder:
        traces = []
        for recording in recordings:
            traces.append(Path(folder) / f"{recording.name.split('.')[0]}.operations")
            write_operations(recording, traces[-1])
        if arguments.gpu:
            table = on_gpu(arguments.allocator, traces, arguments.repetitions)
        else:
            table = without_gpu(arguments.program, traces, arguments.repetitions)
    name = "allocator_gpu" if arguments.gpu else "allocator"
    save(name, f"{head}\n{table}", arguments.results)


if __name__ == "__main__":
    main()
