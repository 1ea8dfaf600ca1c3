"""Measures the speed of `plimsoll replay`, its engine alone, and the replay of a very long trace.

    python benchmarks/replay.py [--events 50000000] [RECORDING]

The long trace is a Parquet file. It repeats the recording until it has the given number of events,
and frees the remaining blocks after each repetition. Results also go to
benchmarks/results/replay.txt.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from machine import machine

from plimsoll import replay
from plimsoll.recordings.events import COLUMNS, Action, EventBatch
from plimsoll.recordings.parquet import TraceWriter
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from plimsoll.recordings.recording import Recording

ROOT = Path(__file__).parents[1]
LARGE = ROOT.parent / "shared" / "traces" / "llama_generate.default.pickle.gz"
SHIPPED = ROOT / "examples" / "recordings" / "gpt2_adamw.pickle.gz"


def engine_rate(recording: Recording, runs: int = 15) -> tuple[float, float]:
    """Returns the engine's median and best events per second.

    Ends the program if a replay does not match the recording.
    """
    rates = []
    for _ in range(runs):
        (result,) = replay(recording)
        if result.matches_recording is not True:
            sys.exit(f"{recording.name}: the replay differs, so its speed means nothing")
        rates.append(result.events / result.engine_seconds)
    return statistics.median(rates), max(rates)


def command_seconds(path: Path, runs: int = 5) -> float:
    """Returns the median wall time of the whole command on one file."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "plimsoll", "replay", str(path), "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def closed(recording: Recording) -> EventBatch:
    """Returns the first device's events, followed by events that free all remaining blocks.

    A block remains if it is in use, or if its free was requested but has not completed.
    """
    (batch,) = _joined(recording)
    action, address = batch.action, batch.address
    alive: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for event in range(len(batch)):
        code, where = int(action[event]), int(address[event])
        if code == Action.ALLOC:
            alive[where] = event
        elif code == Action.FREE_REQUESTED:
            waiting[where] = alive.pop(where)
        elif code == Action.FREE_COMPLETED:
            waiting.pop(where, None)
    source = [e for e in alive.values() for _ in range(2)] + list(waiting.values())
    codes = [Action.FREE_REQUESTED, Action.FREE_COMPLETED] * len(alive)
    codes += [Action.FREE_COMPLETED] * len(waiting)
    order = np.concatenate([np.arange(len(batch)), np.array(source, dtype=np.int64)])
    columns = {name: getattr(batch, name)[order] for name in COLUMNS}
    columns["action"] = np.concatenate([action, np.array(codes, dtype=np.uint8)])
    return EventBatch.of(columns)


def _joined(recording: Recording) -> list[EventBatch]:
    batches = list(recording.devices[0].batches())
    columns = {name: np.concatenate([getattr(b, name) for b in batches]) for name in COLUMNS}
    return [EventBatch.of(columns)]


def write_long_trace(recording: Recording, path: Path, events: int) -> int:
    """Writes a recording again and again, until `events` are written.

    The segments of the first repetition stay reserved. So later repetitions leave out the events
    that allocate or map segments.
    """
    first = closed(recording)
    later = first[~np.isin(first.action, [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])]
    written = 0
    with TraceWriter(path, settings=recording.settings) as writer:
        batch = first
        while written < events:
            writer.write(0, batch)
            written += len(batch)
            batch = later
    return written


def stream(path: Path) -> tuple[float, float, int]:
    """Replays a trace in a new process.

    Returns:
        The seconds to import plimsoll and replay the trace; the seconds of the engine alone; and
        the peak resident bytes of the process.
    """
    program = (
        "import json, pathlib, sys, time\n"
        "start = time.perf_counter()\n"
        "from plimsoll import replay\n"
        "(result,) = replay(sys.argv[1], conf='')\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "peak = int(status.split('VmHWM:')[1].split()[0]) * 1024\n"
        "print(json.dumps([time.perf_counter() - start, result.engine_seconds, peak]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True
    )
    import json

    wall, engine, peak = json.loads(done.stdout)
    return float(wall), float(engine), int(peak)


def main() -> None:
    """Measures the replays, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("recording", nargs="?", type=Path, default=None)
    arguments = parser.parse_args()
    path = arguments.recording or (LARGE if LARGE.exists() else SHIPPED)
    recording = read_recording(path)
    events = recording.devices[0].event_count
    lines = [f"machine: {machine()}", f"recording: {path.name}, {events:,} events", ""]

    median, best = engine_rate(recording)
    lines.append(f"{'engine, one core, checked against the recording':<58}"
                 f"{median / 1e6:8.1f} million events/s (best {best / 1e6:.1f})")  # fmt: skip
    lines.append(f"{'the whole command, --json':<58}{command_seconds(path):8.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder) / "long.parquet"
        start = time.perf_counter()
        written = write_long_trace(recording, long, arguments.events)
        seconds = time.perf_counter() - start
        size = long.stat().st_size / 2**20
        lines.append(f"{f'Parquet trace of {written:,} events, written':<58}"
                     f"{seconds:8.1f} s, {size:.0f} MiB")  # fmt: skip
        wall, engine, peak = stream(long)
        lines.append(f"{'  replayed in a fresh process':<58}{wall:8.1f} s, "
                     f"{written / engine / 1e6:.1f} million events/s in the engine")  # fmt: skip
        lines.append(f"{'  its peak resident memory':<58}{peak / 2**20:8.0f} MiB")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines.append(f"{'this process, the writer included':<58}{own:8.0f} MiB")
    text = "\n".join(lines)
    print(text)
    if arguments.recording is None:
        results = ROOT / "benchmarks" / "results"
        results.mkdir(exist_ok=True)
        (results / "replay.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
