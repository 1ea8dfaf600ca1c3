"""Measures the memory and time that explaining a long recording takes.

    python benchmarks/long_recordings.py [--events 1000000 10000000 30000000]

`view.py` generates the events of a training run whose steps all differ. Two recordings hold them:
one with marks at the ends of steps, and one without marks. plimsoll summarizes each recording as
one rank of a job, in a new process. In another new process it explains the recording as `plimsoll
explain` does, but gives no advice. The table shows each process's time and peak resident memory.
Results also go to benchmarks/results/long_recordings.txt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from report import heading, save
from view import Training, frames

from plimsoll.base.units import format_size
from plimsoll.recordings.stream_writer import StreamWriter

PROGRAM = """
import json, pathlib, sys, time
from plimsoll.explanation.explain import explain
from plimsoll.explanation.ranks.rank_summary import summarize
def resident():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
before, start = resident(), time.perf_counter()
path = pathlib.Path(sys.argv[2])
found = summarize(path) if sys.argv[1] == "rank" else explain(path, search_events=0)
steps = found.steps if sys.argv[1] == "rank" else found.steps.count
print(json.dumps([before, resident(), time.perf_counter() - start, steps]))
"""


def write(path: Path, events: int, *, marks: bool) -> int:
    """Writes the run as a streaming trace of at least `events` events. Returns their number."""
    training = Training()
    writer = StreamWriter(path, frames)
    first = True
    while training.events < events:
        batch = training.setup() if first else training.step()
        devices = np.zeros(len(batch), dtype=np.int32)
        ends = [(len(batch), int(batch.time_us[-1]), "step")] if marks else []
        writer.write(devices, batch, marks=ends, start={0: []} if first else None)
        first = False
    writer.write(np.zeros(0, dtype=np.int32), batch[:0], end={0: []}, ended=True)
    writer.close()
    return training.events


def measure(what: str, path: Path) -> tuple[int, int, float, int]:
    """Summarizes a recording (`what` is "rank") or explains it ("file"), in a new process.

    Returns:
        The process's peak resident bytes before this work, and after it; the seconds of the work;
        and the number of training steps that plimsoll finds in the recording.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, str(path)], check=True, capture_output=True, text=True
    )
    before, most, seconds, steps = json.loads(done.stdout)
    return before, most, seconds, steps


def main() -> None:
    """For each number of events, writes and measures recordings. Prints and saves the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, nargs="+", default=[10**6, 10**7, 3 * 10**7])
    parser.add_argument("--what", nargs="+", default=["rank", "file"])
    options = parser.parse_args()
    out = []
    for events in options.events:
        for marks in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "run.rank0.plim"
                count = write(path, events, marks=marks)
                for what in options.what:
                    before, most, seconds, steps = measure(what, path)
                    out.append(
                        f"{what}: {count:>11,} events, {steps:,} steps "
                        f"{'marked' if marks else 'found'}: {format_size(most)} at most, "
                        f"{(most - before) / count:.1f} bytes an event beyond "
                        f"{format_size(before)}; {seconds:.1f} s"
                    )
                    print(out[-1], flush=True)
    if options.what == ["rank", "file"]:
        save("long_recordings", heading() + "\n" + "\n".join(out) + "\n")


if __name__ == "__main__":
    main()
