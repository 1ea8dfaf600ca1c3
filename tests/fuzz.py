"""Mutates recordings of every format, then reads and uses them as untrusted files.

    python -m tests.fuzz --cases 200
    python -m tests.fuzz --cases 500 --commands
    python -m tests.fuzz --seconds 3600 --workers 2 --keep build/fuzz/found

The use of a file may raise only plimsoll's own errors. It must also stay within a time limit and a
memory limit. Half of the cases are files with changed bytes. The other half are well-formed files,
with valid checksums, that contain impossible histories. A case depends only on its number:
`--first N --cases 1` runs case N again.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plimsoll import Allocator, InputError, OutOfMemoryError, SimulatedGpu, explain, replay
from plimsoll.page.document import make_page
from plimsoll.page.exports import EXPORTS, export
from plimsoll.page.run import prepare
from plimsoll.recordings.parquet import write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Mark, Recording
from plimsoll.recordings.stream_writer import StreamWriter
from tests.recordings import ROOT, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_SECONDS = 20
MOST_BYTES = 2 << 30
FORMATS = ("pickle", "pickle.gz", "plim", "parquet")
SEEDS = (
    "ends.live", "ends.emptied_expandable", "graphs.default", "pool_on_oom.default",
    "graph_streams.default", "streams.limited", "ring.expandable", "two_users.default",
    "elastic", "two devices", "elastic on three devices",
)  # fmt: skip

_INTEGERS = (
    0, 1, -1, 7, 255, 512, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 48) - 1, 1 << 53,
    (1 << 62) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 1 << 70,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, "", "alloc", "\x1b]0;x\x07", "\u202e", "\ud800", "é" * 300, b"\xff", 1.5,
    float("inf"),
    float("nan"), [], (), {}, [[]], {"a": {}}, "0", *_INTEGERS,
)  # fmt: skip


# --- well-formed files to mutate -----------------------------------------------------------------


@cache
def snapshot(name: str) -> bytes:
    """Returns the pickle of a recording that is in tests/data or is made here.

    Both sources are trusted, so Python's own pickle may load the result.
    """
    if name == "elastic":
        return elastic_snapshot()
    if name == "two devices":
        return joined_snapshots("ends.live", "graphs.default")
    if name == "elastic on three devices":
        return joined_snapshots("elastic", "streams.limited", "elastic")
    return gzip.decompress((SMALL / f"{name}.pickle.gz").read_bytes())


def elastic_snapshot() -> bytes:
    """Returns a recording of the elastic allocator: two streams, moved memory, a failed request."""
    chance = random.Random(0)
    allocator = Allocator(SimulatedGpu("256MiB"), allocator="elastic")
    allocator.record_memory_history()
    live: list[int] = []
    for _ in range(300):
        if live and chance.random() < 0.45:
            allocator.free(live.pop(chance.randrange(len(live))))
        else:
            with contextlib.suppress(OutOfMemoryError):
                size = int(2 ** chance.uniform(9, 25))
                live.append(allocator.malloc(size, stream=chance.choice((0, 0, 7))))
        if live and chance.random() < 0.1:
            allocator.record_stream(live[-1], 7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "elastic.pickle")
        allocator.dump_snapshot(path)
        return path.read_bytes()


def joined_snapshots(*names: str) -> bytes:
    """Returns one recording with several devices, each from one of the named recordings."""
    merged, *others = (pickle.loads(snapshot(name)) for name in names)
    merged["device_traces"] = [merged["device_traces"][0]]
    for device, other in enumerate(others, 1):
        merged["device_traces"].append(other["device_traces"][0])
        merged["segments"] += [{**segment, "device": device} for segment in other["segments"]]
    return pickle.dumps(merged)


@cache
def seed(name: str, form: str) -> bytes:
    """Returns the named recording as a file of the given format.

    A .plim or Parquet file also has two marks (named moments).
    """
    if form == "pickle":
        return snapshot(name)
    if form == "pickle.gz":
        return gzip.compress(snapshot(name), 6, mtime=0)
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "seed.pickle"), Path(folder, f"seed.{form}")
        source.write_bytes(snapshot(name))
        recording = read_recording(source)
        if form == "plim":
            write_plim(recording, path)
        else:
            trace = recording.devices[0]
            marks = [Mark(trace.event_count // part, part, "step", trace.device) for part in (2, 1)]
            write_parquet(
                Recording("seed", recording.devices, recording.settings, marks=marks), path
            )
        return path.read_bytes()


def write_plim(recording: Recording, path: Path) -> None:
    """Writes a .plim file: two batches for each device. The last batch ends the recording."""
    traces = [trace for trace in recording.devices if trace.event_count]
    writer = StreamWriter(path, traces[0].frames, recording.settings)
    for trace in traces:
        events = trace.load()
        half = len(events) // 2
        start = {trace.device: trace.start(recording.conf, recording.version)}
        devices = np.full(len(events), trace.device, dtype=np.int32)
        writer.write(devices[:half], events[:half], start=start, marks=[(half // 2, 5, "step")])
        end, ended = {trace.device: trace.segments}, trace is traces[-1]
        marks = [(1, 9, "step")]
        writer.write(devices[half:], events[half:], end=end, marks=marks, ended=ended)
    writer.close()


# --- mutations -----------------------------------------------------------------------------------


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """Returns `content` with a few bytes changed, removed, repeated or inserted."""
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        place = chance.randrange(len(damaged) + 1)
        length = chance.choice((1, 2, 4, 8, chance.randrange(1, 200)))
        match chance.randrange(7):
            case 0 if place < len(damaged):
                damaged[place] ^= 1 << chance.randrange(8)
            case 1:
                del damaged[place : place + length]
            case 2:
                damaged[place:place] = chance.randbytes(length)
            case 3:
                number = chance.choice(_INTEGERS) & ((1 << 64) - 1)
                width = chance.choice((1, 2, 4, 8))
                damaged[place : place + width] = (number & ((1 << 8 * width) - 1)).to_bytes(
                    width, "little"
                )
            case 4 | 5:
                origin = chance.randrange(len(damaged) + 1)
                damaged[place:place] = damaged[origin : origin + length]
            case _ if chance.random() < 0.1:
                del damaged[place:]
    return bytes(damaged)


def mutate_tree(value: Any, chance: random.Random) -> Any:
    """Replaces, drops, repeats or shares parts of `value`, and returns `value`.

    This changes the dicts and lists in `value` themselves, not copies of them.
    """
    for _ in range(chance.choice((1, 1, 2, 5))):
        container, key = _place(value, chance)
        if container is None:
            continue
        match chance.randrange(6):
            case 0 | 1:
                container[key] = chance.choice(_VALUES)
            case 2 if isinstance(container[key], int):
                container[key] += chance.choice((-1, 1, -512, 512, 1 << 20, 1 << 40))
            case 3:
                del container[key]
            case 4 if isinstance(container, list):
                container[key:key] = [container[key]] * chance.choice((1, 2, 50))
            case _:
                other, name = _place(value, chance)
                if other is not None:
                    container[key] = other[name]
    return value


def _place(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Returns a random dict or list in `value`, and a random key or index of that dict or list.

    Returns (None, None) if `value` is not a dict or list with elements.
    """
    container, key = None, None
    while isinstance(value, dict | list) and value:
        container = value
        key = chance.choice([*value]) if isinstance(value, dict) else chance.randrange(len(value))
        value = container[key]
        if chance.random() < 0.1:
            break
    return container, key


def mutate_pickle(content: bytes, chance: random.Random) -> bytes:
    return pickle.dumps(mutate_tree(pickle.loads(content), chance), protocol=chance.randrange(6))


def mutate_columns(batch: pa.RecordBatch, chance: random.Random) -> pa.RecordBatch:
    """Drops a row, swaps two rows, or overwrites values of a column. Returns the new batch."""
    if batch.num_rows == 0:
        return batch
    match chance.randrange(4):
        case 0:
            row = chance.randrange(batch.num_rows)
            rows = [*range(row), *range(row + 1, batch.num_rows)]
            return batch.take(pa.array(rows, pa.int64()))
        case 1:
            order = np.arange(batch.num_rows)
            one, other = (chance.randrange(batch.num_rows) for _ in range(2))
            order[[one, other]] = order[[other, one]]
            return batch.take(pa.array(order))
        case _:
            place = chance.randrange(batch.num_columns)
            column = batch.column(place).to_numpy(zero_copy_only=False).copy()
            info = np.iinfo(column.dtype)
            row = chance.randrange(len(column))
            number = chance.choice((*_INTEGERS, int(column[row]) + chance.choice((1, -1, 512))))
            column[row : row + chance.choice((1, 1, 1, 9))] = min(max(number, info.min), info.max)
            return batch.set_column(place, batch.schema.field(place), pa.array(column))


def unpack_plim(content: bytes) -> tuple[pa.Schema, Any, list[tuple[pa.RecordBatch, Any]]]:
    """Returns the schema of a .plim file, its header, and its batches, each with its metadata."""
    with pa.ipc.open_stream(content) as stream:
        schema = stream.schema
        parts = []
        with contextlib.suppress(StopIteration):
            while True:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
                parts.append((batch, json.loads(dict(metadata).get(b"plimsoll", b"{}") or b"{}")))
    return schema, json.loads(schema.metadata[b"plimsoll"]), parts


def mutate_plim(content: bytes, chance: random.Random) -> bytes:
    """Returns a copy of a recording with mutated metadata or events, and valid checksums."""
    schema, header, parts = unpack_plim(content)
    tree = [header, *(facts for _, facts in parts)]
    if chance.random() < 0.5:
        mutate_tree(tree, chance)
        tree = (tree + [{}] * len(parts))[: len(parts) + 1]
    else:
        place = chance.randrange(len(parts))
        parts[place] = (mutate_columns(parts[place][0], chance), parts[place][1])
    facts = tree[1:]
    return pack_plim(
        schema,
        tree[0],
        [(batch, known) for (batch, _), known in zip(parts, facts, strict=True)],
        compression=chance.choice((None, "zstd", "lz4")),
    )


def pack_plim(
    schema: pa.Schema,
    header: Any,
    parts: Sequence[tuple[pa.RecordBatch, Any]],
    compression: str | None = "zstd",
) -> bytes:
    """Returns a .plim file of batches and their metadata, with valid checksums."""
    text = json.dumps(header).encode()
    checksum = zlib.crc32(text)
    schema = schema.with_metadata({b"plimsoll": text, b"plimsoll.crc": str(checksum).encode()})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch, facts in parts:
            text = json.dumps(facts).encode()
            checksum = zlib.crc32(text, checksum)
            for column in batch.columns:
                values = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
                checksum = zlib.crc32(values.data, checksum)
            keys = {b"plimsoll": text, b"plimsoll.crc": str(checksum).encode()}
            writer.write_batch(batch.replace_schema_metadata(schema.metadata), keys)
    return sink.getvalue()


def mutate_parquet(content: bytes, chance: random.Random) -> bytes:
    table = pq.read_table(io.BytesIO(content))
    raw = pq.read_metadata(io.BytesIO(content)).metadata
    metadata = {key: json.loads(raw[key]) for key in (b"plimsoll", b"plimsoll.stacks")}
    if chance.random() < 0.5:
        mutate_tree(metadata, chance)
    else:
        batch = table.combine_chunks().to_batches()[0]
        table = pa.Table.from_batches([mutate_columns(batch, chance)])
    texts = {key: json.dumps(value).encode() for key, value in metadata.items()}
    checksum = zlib.crc32(b"".join(texts.values()))
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({**texts, b"plimsoll.crc": str(checksum).encode()}),
        sink,
        compression=chance.choice(("zstd", "none", "snappy")),
        row_group_size=chance.choice((100, 1 << 20)),
    )
    return sink.getvalue()


_WELL_FORMED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "pickle": mutate_pickle,
    "pickle.gz": lambda content, chance: gzip.compress(
        mutate_pickle(gzip.decompress(content), chance), 1, mtime=0
    ),
    "plim": mutate_plim,
    "parquet": mutate_parquet,
}


def make_case(number: int) -> tuple[str, bytes]:
    """Returns the format and the bytes of case `number`."""
    chance = random.Random(number)
    form = FORMATS[number % len(FORMATS)]
    content = seed(chance.choice(SEEDS), form)
    if chance.random() < 0.5:
        return form, mutate_bytes(content, chance)
    # Mutated data may be circular, or of a type that the format cannot hold. The case is then the
    # file without mutations.
    with contextlib.suppress(ValueError, TypeError, RecursionError, OverflowError, LookupError):
        content = _WELL_FORMED[form](content, chance)
    return form, content


# --- uses of a mutated file ----------------------------------------------------------------------


def exercise(path: Path, chance: random.Random) -> None:
    """Reads and replays a recording. Then explains, shows or exports it in about half of the cases.

    Suppresses `InputError`, and lets other errors pass to the caller.
    """
    with contextlib.suppress(InputError):
        recording = read_recording(path, needs_history=False)
        for trace in recording.devices:
            with contextlib.suppress(InputError):
                events = trace.load()
                assert len(events) == trace.event_count
                for stack in np.unique(events.stack)[:50].tolist():
                    trace.frames(stack)
        with contextlib.suppress(InputError):
            for result in replay(recording):
                result.to_dict()
        match chance.randrange(20):
            case 0:
                explain(recording).to_dict()
            case 1 | 2 | 3:
                explain(recording, advice=False).to_dict()
            case 4 | 5 | 6:
                make_page([prepare(recording)])
            case 7 | 8 | 9:
                kind = chance.choice([*EXPORTS])
                export(recording, kind, path.with_suffix(f".out{EXPORTS[kind].ending}"), force=True)
            case 10 | 11:
                replay(recording, allocator=chance.choice(("elastic", "uncached")))


class BrokenError(Exception):
    """A command crashed, hung, or took too much memory."""


def give_to_command(path: Path, chance: random.Random) -> None:
    """Gives a file to one of the commands.

    Raises:
        BrokenError: If the command ended in an unexpected way, or took too much memory.
    """
    page = path.with_suffix(".out.html")
    verbs = (["replay", path], ["explain", "--no-advice", path], ["view", path, "-o", page])
    verb = [str(part) for part in chance.choice(verbs)]
    ended = subprocess.run(
        [sys.executable, "-m", "plimsoll", *verb],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        timeout=MOST_SECONDS,
    )  # fmt: skip
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")]
    if ended.returncode not in (0, 1, 2) or len(lines) > 1:
        raise BrokenError(f"{' '.join(verb)} ended with {ended.returncode}: {ended.stderr}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if used > MOST_BYTES:
        raise BrokenError(f"{' '.join(verb)} took {used >> 20} MiB")


def run_cases(
    numbers: Sequence[int],
    folder: Path,
    until: float,
    what: Callable[[Path, random.Random], None] = exercise,
) -> None:
    """Runs cases one by one, each from a file in `folder`; the files of failed cases stay there.

    Args:
        numbers: The numbers of the cases.
        folder: The folder for the cases' files.
        until: The time to stop at, on the monotonic clock.
        what: Called with each file; its errors are reported.
    """
    for number in numbers:
        if time.monotonic() > until:
            return
        form, content = make_case(number)
        path = folder / f"case-{number}.{form}"
        path.write_bytes(content)
        signal.alarm(2 * MOST_SECONDS)  # a case that hangs is killed by SIGALRM
        began = time.monotonic()
        try:
            what(path, random.Random(number))
        except Exception:
            print(f"case {number} ({form}):", file=sys.stderr)
            traceback.print_exc()
            path.rename(folder / f"found-{path.name}")
        signal.alarm(0)
        seconds = time.monotonic() - began
        if seconds > MOST_SECONDS:
            print(f"case {number} ({form}) took {seconds:.1f} s", file=sys.stderr)
            path.rename(folder / f"found-{path.name}")
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES:
            print(f"case {number} ({form}) or one before took too much memory", file=sys.stderr)
            path.rename(folder / f"found-{path.name}")
            return
        for left in folder.glob(f"case-{number}.*"):
            left.unlink()
        print("done", number, flush=True)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of recordings.")
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--commands", action="store_true", help="Give the files to commands, not to functions."
    )
    parser.add_argument("--keep", type=Path, help="Where the files go that break something.")
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if given.as_worker:
            numbers = range(given.first, given.first + given.cases, given.workers)
            what = give_to_command if given.commands else exercise
            run_cases(numbers, folder, time.monotonic() + given.seconds, what)
            return 0
        return _drive(given, folder)


_BATCH = 2000
"""The number of cases that one process runs.

A new process runs the next cases, so nothing that earlier cases left in memory affects them.
"""


def _drive(given: argparse.Namespace, folder: Path) -> int:
    until = time.monotonic() + given.seconds
    at, last = given.first, given.first + given.cases
    done = 0
    while at < last and time.monotonic() < until:
        batch = min(_BATCH * given.workers, last - at)
        workers = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "tests.fuzz", "--as-worker", "--keep", str(folder),
                    "--first", str(at + one), "--cases", str(batch - one),
                    "--workers", str(given.workers),
                    "--seconds", str(max(until - time.monotonic(), 0)),
                    *(["--commands"] if given.commands else []),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for one in range(given.workers)
        ]  # fmt: skip
        outputs = [worker.communicate()[0] for worker in workers]
        done += sum(output.count("done ") for output in outputs)
        for worker in workers:
            if worker.returncode != 0:
                print(f"a worker ended with status {worker.returncode}", file=sys.stderr)
        for case in folder.glob("case-*"):  # left by workers that died
            case.rename(folder / f"found-{case.name}")
        at += batch
        print(f"{done:,} cases, {len(list(folder.glob('found-*')))} found", flush=True)
    found = sorted(folder.glob("found-*"))
    for path in found:
        print(path, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
