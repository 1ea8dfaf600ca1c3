"""Measures `plimsoll explain` on jobs of many ranks: its time, memory, hits and false alarms.

    python benchmarks/ranks.py [large | faults | clean]... [--ranks 1024] [--events 100000]

`tests/made_ranks.py` makes the recordings from real ones, and puts faults into some ranks. `large`
measures time and memory for one job of many ranks with 20 faults of each kind. Two processes
explain the job, and the memory of all processes is read twice a second. `faults` counts how many
faults plimsoll finds in 20 jobs of 32 ranks for each kind of fault. `clean` counts false alarms in
100 healthy jobs of 32 ranks. Some of these jobs vary the length of their steps' data, some have
uneven shards, and some have pipeline stages. Results also go to benchmarks/results/ranks.txt.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from report import heading, save

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from plimsoll.explanation.ranks.explain_ranks import explain_ranks, read_job  # noqa: E402
from tests.made_ranks import FAULTS, Fault, History, Rank, history_of, program_of, write_rank  # noqa: E402

PARTS = ("large", "faults", "clean")
RECORDED = [
    ROOT.parent / "shared" / "traces" / f"{name}.pickle.gz"
    for name in (
        "gpt2_adamw.stacks", "resnet_amp.stacks", "bert_varlen_amp.default", "mixtral_moe.default",
    )
]  # fmt: skip
RANKS_OF_A_JOB = 32
OF_EACH_KIND = 20
CLEAN_JOBS = 100
STAGES = 4
GiB = 1 << 30


class Footprint:
    """The peak memory of this process and its children.

    A page that several processes share is counted once for each of them.
    """

    def __init__(self) -> None:
        self.most_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Footprint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.5):
            self.most_bytes = max(self.most_bytes, sum(_resident_bytes(os.getpid())))


def _resident_bytes(process: int) -> Iterator[int]:
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except OSError:
        return
    yield int(pages) * os.sysconf("SC_PAGE_SIZE")
    for child in children:
        yield from _resident_bytes(int(child))


def shards(random: np.random.Generator, ranks: int) -> list[float]:
    """Returns each rank's shard size relative to the largest.

    The function chooses one of four cases at random: all shards are equal; all sizes differ; one
    shard is smaller than the rest; or a quarter are larger than the rest.
    """
    kind = int(random.integers(4))
    if kind == 0:
        return [1.0] * ranks
    if kind == 1:
        return [float(one) for one in random.uniform(0.9, 1.0, ranks)]
    if kind == 2:
        return [1.0] * (ranks - 1) + [float(random.uniform(0.3, 0.9))]
    return [1.0 if rank < ranks // 4 else 0.93 for rank in range(ranks)]


def job(
    folder: Path, number: int, events: int, faulty: dict[int, Fault], *, ranks: int = RANKS_OF_A_JOB
) -> None:
    """Writes the recordings of a job."""
    random = np.random.default_rng(number)
    # BERT's peak is in the optimizer's step. The fault "full", a larger batch, would not change it.
    known_to_fill = [path for path in RECORDED if "bert" not in path.name]
    recorded = known_to_fill if "full" in faulty.values() else RECORDED
    program = program_of(recorded[number % len(recorded)])
    stages = int(random.choice([1, 2, 4]))
    # A job with a fault has steps of one length: varying lengths would fragment every rank's memory
    # more than the fault does.
    lengths = 1.0 if faulty else float(random.choice([1.0, 0.9, 0.7]))
    sizes = shards(random, ranks)
    is_alike = bool(random.integers(2))  # whether all ranks stop after the same number of events
    marks = bool(random.integers(2))
    known: dict[Rank, History] = {}
    for rank in range(ranks):
        count = events if is_alike else round(events * float(random.uniform(0.8, 1.2)))
        one = Rank(
            events=count,
            shard=sizes[rank],
            stage=rank * stages // ranks,
            stages=stages,
            lengths=lengths,
            seed=number * 1000 + (rank if lengths < 1 or rank in faulty else 0),
            fault=faulty.get(rank),
        )
        if one not in known:
            known[one] = history_of(program, one)
        path = folder / f"job.rank{rank}.plim"
        write_rank(path, known[one], rank=rank, world_size=ranks, seed=rank, marks=marks)


def look(folder: Path, processes: int | None = 2) -> set[tuple[int, str]]:
    """Explains the job in a folder.

    Returns:
        A pair for each rank that stands out: the rank's number, and `Outlier.kind`, such as "leak".
    """
    read = read_job(folder, processes=processes)
    assert not read.not_read, read.not_read
    return {(one.rank, one.kind) for one in read.outliers}


def clean(out: list[str], events: int, jobs: int) -> None:
    """Explains healthy jobs, and counts false alarms."""
    named: list[str] = []
    for number in range(jobs):
        with tempfile.TemporaryDirectory() as folder:
            job(Path(folder), number, events, {})
            named += [f"  job {number}: rank {rank}, {kind}" for rank, kind in look(Path(folder))]
    out.append(
        f"clean: {jobs} jobs of {RANKS_OF_A_JOB} ranks, {events:,} events each: "
        f"{len(named)} false alarms"
    )
    out += named


def faults(out: list[str], events: int, jobs: int) -> None:
    """Explains jobs with one fault each, and counts hits and false alarms."""
    for kind in FAULTS:
        found = others = 0
        missed: list[str] = []
        for number in range(jobs):
            faulty = int(np.random.default_rng([number, 1]).integers(RANKS_OF_A_JOB))
            with tempfile.TemporaryDirectory() as folder:
                job(Path(folder), number, events, {faulty: kind})
                named = look(Path(folder))
            found += (faulty, kind) in named
            others += sum(rank != faulty for rank, _ in named)
            if (faulty, kind) not in named or len(named) > 1:
                missed.append(f"  job {number}, rank {faulty}: {sorted(named)}")
        out.append(f"faults: {kind}: {found} of {jobs} found; {others} other ranks named")
        out += missed


def large(out: list[str], events: int, ranks: int, processes: int) -> None:
    """Explains one job of many ranks, and reports the time, the memory, and the faults found."""
    random = np.random.default_rng(7)
    chosen = random.choice(ranks, min(OF_EACH_KIND * len(FAULTS), ranks // 4), replace=False)
    faulty = {int(rank): FAULTS[place % len(FAULTS)] for place, rank in enumerate(chosen)}
    program = program_of(RECORDED[0])
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        healthy: dict[int, History] = {}
        for rank in range(ranks):
            stage = rank * STAGES // ranks
            one = Rank(
                events, stage=stage, stages=STAGES, shard=1 - 0.05 * (rank % 2),
                seed=rank if rank in faulty else stage * 8 + rank % 8, fault=faulty.get(rank),
            )  # fmt: skip
            if rank in faulty:
                history = history_of(program, one)
            else:
                history = (
                    healthy.setdefault(one.seed, history_of(program, one))
                    if one.seed not in healthy
                    else healthy[one.seed]
                )
            path = Path(folder) / f"job.rank{rank}.plim"
            write_rank(path, history, rank=rank, world_size=ranks, seed=rank)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        made = time.monotonic() - began
        began = time.monotonic()
        with Footprint() as footprint:
            result = explain_ranks(folder, processes=processes)
        taken = time.monotonic() - began
    named = {(one.rank, one.kind) for one in result.outliers}
    wanted = Counter(faulty.values())
    found = Counter(kind for rank, kind in faulty.items() if (rank, kind) in named)
    wrong = sorted((rank, kind) for rank, kind in named if rank not in faulty)
    out += [
        f"large: {ranks:,} ranks of {events:,} events, {size / GiB:.2f} GiB (made in {made:.0f} s)",
        f"  grouped and explained by {processes} processes in {taken:.1f} s; at most "
        f"{footprint.most_bytes / GiB:.2f} GiB in all processes",
        f"  {len(result.groups)} groups of "
        + ", ".join(str(len(group.ranks)) for group in result.groups),
        *(f"  {kind}: {found[kind]} of {count} found" for kind, count in wanted.items()),
        f"  ranks named without a fault: {wrong or 'none'}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--jobs", type=int, default=CLEAN_JOBS, help="clean ones; a fifth with faults"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if missing := [path for path in RECORDED if not path.exists()]:
        parser.error(f"the recordings that jobs are made from are not there: {missing[0]}")
    out: list[str] = []
    wanted = options.parts or PARTS
    if "clean" in wanted:
        clean(out, 10_000, options.jobs)
    if "faults" in wanted:
        faults(out, 10_000, max(options.jobs // 5, 1))
    if "large" in wanted:
        large(out, options.events, options.ranks, options.processes)
    text = heading() + "\n" + "\n".join(out) + "\n"
    print(text)
    if not options.parts:
        save("ranks", text)


if __name__ == "__main__":
    main()
