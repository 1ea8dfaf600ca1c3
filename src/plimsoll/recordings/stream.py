"""Streaming traces (`.plim`): a history that is written while it happens.

An Arrow IPC stream: one schema, and batch after batch of events, as they came. The columns are
those of `EventBatch` with `device` before them, so that any reader of Arrow can go through them.
What is not an event is JSON in the metadata of the batch that it came with, under the key
`plimsoll`; each entry of it may be missing:

    frames   [[file, line, function], ...]: frames that are new; they are numbered from 0 on
    stacks   {number: [frame, ...]}: call stacks that are new, innermost frame first
    marks    [[row, time, name], ...]: named moments; `row` rows of the batch came before
    start    {device: [segment, ...]}: what there was before the first event
    end      {device: [segment, ...]}: what there is after the last event
    dropped  how many events found no room so far
    ended    true: the recording ended in good order

The schema's metadata says the format's number and the allocator's settings. So a file needs nothing
that comes after it: one that was cut, or is being written, opens up to its last whole batch.

Under the key `plimsoll.crc`, beside that JSON, is a checksum as decimal digits: the CRC-32 (that of
zlib) of the JSON's bytes and the bytes of all columns, continued from the checksum of the batch
before, and for the first batch from that of the schema's JSON. So a batch that was changed, or is
not in its place, is where the history ends.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.recordings.checks import (
    DAMAGE,
    MOST_DEVICES,
    DamageError,
    check_count,
    check_events,
    check_frame,
    check_moment,
    check_segments,
    check_settings,
)
from plimsoll.recordings.events import COLUMNS, EventBatch, Frame
from plimsoll.recordings.expansion import check_message, read_messages
from plimsoll.recordings.recording import DeviceTrace, Mark, Recording
from plimsoll.recordings.segment_rows import segment_from_json, segment_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_FORMAT = 2
_KEY = b"plimsoll"
_SUM_KEY = b"plimsoll.crc"
_MOST_ROWS = 1 << 17
_EVENTS_PER_MARK = 8  # as many take the memory of a mark, which is kept for each device
_MOST_BYTES = 1 << 20  # of a batch that are put together before the file gets them
_SCHEMA = pa.schema(
    [
        ("device", pa.int32()),
        *((name, pa.from_numpy_dtype(dtype)) for name, dtype in COLUMNS.items()),
    ]
)
_NEW = np.uint32(0xFFFFFFFF)


# --- writing -------------------------------------------------------------------------------------


class StreamWriter:
    """Writes a streaming trace. Whatever was written is in the file when `write` returns.

    Args:
        path: Of the file, which must not exist.
        frames: Spells out the call stack of a number in the `stack` column.
        settings: Of the recorded allocator, as in PyTorch's snapshots.

    Raises:
        InputError: If `path` exists already, or cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        frames: Callable[[int], Sequence[Frame]],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self._spell = frames
        self._frames: dict[Frame, int] = {}
        self._numbers = np.array([0], dtype=np.uint32)  # in the file, by the recorder's number
        self._stacks: dict[tuple[int, ...], int] = {}  # by frames
        header = json.dumps({"format": _FORMAT, "settings": dict(settings or {})}).encode()
        self._sum = zlib.crc32(header)
        self._file = _WholeWrites(self.path)
        # Arrow writes each part of a batch by itself, which here takes no interpreter's lock.
        self._parts = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), _MOST_BYTES)
        try:
            self._arrow = pa.ipc.new_stream(
                self._parts,
                _SCHEMA.with_metadata({_KEY: header, _SUM_KEY: str(self._sum)}),
                options=pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False),
            )
            self._send()
        except OSError as error:
            self._file.close()
            self.path.unlink()
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None

    def write(
        self,
        devices: NDArray[np.int32],
        events: EventBatch,
        *,
        marks: Sequence[tuple[int, int, str]] = (),
        start: Mapping[int, list[_core.SegmentInfo]] | None = None,
        end: Mapping[int, list[_core.SegmentInfo]] | None = None,
        dropped: int = 0,
        ended: bool = False,
    ) -> None:
        """Append events, of any devices, in order.

        Args:
            devices: Of each event.
            events: Their stacks have the recorder's numbers.
            marks: Row, time and name of moments between them; the row is of the first one after.
            start: With the first batch, the segments of each device before it.
            end: With the last batch, the segments of each device after it.
            dropped: How many events were lost so far.
            ended: Whether this is the last batch.

        Raises:
            OSError: If the file cannot be written.
        """
        for begin in range(0, max(len(events), 1), _MOST_ROWS):
            stop = begin + _MOST_ROWS
            is_first, is_last = begin == 0, stop >= len(events)
            self._write(
                devices[begin:stop],
                events[begin:stop],
                {
                    "marks": [
                        [row - begin, time_us, name]
                        for row, time_us, name in marks
                        if begin <= row and (row < stop or is_last)
                    ],
                    "start": (start or {}) if is_first else {},
                    "end": (end or {}) if is_last else {},
                    "dropped": dropped,
                    "ended": ended and is_last,
                },
            )

    def _write(self, devices: NDArray[np.int32], events: EventBatch, facts: dict[str, Any]) -> None:
        known = len(self._frames)
        spelled: dict[int, tuple[int, ...]] = {}
        stacks = self._renumber(events.stack, spelled)
        for name in ("start", "end"):
            facts[name] = {
                device: [segment_to_json(s, lambda n: self._number(n, spelled)) for s in of]
                for device, of in facts[name].items()
            }
        facts |= {"stacks": spelled, "frames": list(self._frames)[known:] if spelled else []}
        facts = {name: value for name, value in facts.items() if value}
        text = json.dumps(facts).encode() if facts else b""
        columns = [stacks if name == "stack" else getattr(events, name) for name in COLUMNS]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column) for column in (devices, *columns)], schema=_SCHEMA
        )
        self._sum = _checksum(self._sum, text, devices, columns)
        self._arrow.write_batch(batch, {_KEY: text, _SUM_KEY: str(self._sum)})
        self._send()

    def _send(self) -> None:
        self._parts.flush()
        self._file.send()

    def _renumber(
        self, stacks: NDArray[np.uint32], spelled: dict[int, tuple[int, ...]]
    ) -> NDArray[np.uint32]:
        """Stacks by their numbers in the file; those that are new are spelled out."""
        most = int(stacks.max(initial=0))
        if most >= len(self._numbers):
            longer = np.full(2 * most + 1, _NEW, dtype=np.uint32)
            longer[: len(self._numbers)] = self._numbers
            self._numbers = longer
        numbers: NDArray[np.uint32] = self._numbers[stacks]
        is_new = numbers == _NEW
        if is_new.any():
            for stack in np.unique(stacks[is_new]).tolist():
                self._number(stack, spelled)
            numbers = self._numbers[stacks]
        return numbers

    def _number(self, stack: int, spelled: dict[int, tuple[int, ...]]) -> int:
        if stack >= len(self._numbers):
            self._renumber(np.array([stack], dtype=np.uint32), spelled)
        if self._numbers[stack] == _NEW:
            frames = tuple(
                self._frames.setdefault(frame, len(self._frames)) for frame in self._spell(stack)
            )
            if frames not in self._stacks:
                self._stacks[frames] = len(self._stacks) + 1
                spelled[self._stacks[frames]] = frames
            self._numbers[stack] = self._stacks[frames]
        return int(self._numbers[stack])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _WholeWrites:
    """A new file to which what was written goes in one piece, when it is sent.

    So the end of a process, however sudden, hardly ever leaves half a batch; and a child process
    has nothing left to write.
    """

    closed = False

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"{path}: exists already and is not overwritten") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        self._waiting = bytearray()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._waiting += view
        return view.nbytes

    def flush(self) -> None:
        """Arrow asks for it after each part of a batch."""

    def send(self) -> None:
        while self._waiting:
            written = os.write(self._descriptor, self._waiting)
            del self._waiting[:written]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)


# --- reading -------------------------------------------------------------------------------------


def read_stream(path: Path, memory: int) -> Recording:
    """Open a streaming trace, up to its last whole batch.

    Args:
        path: Of the file.
        memory: The most bytes that all events may take.

    Raises:
        InputError: If it is none, or has no events.
        ReadingLimitError: If the events take more.
    """
    contents = _Contents(path, memory)
    devices = sorted(contents.counts)
    if not devices:
        raise InputError(f"{path}: the history is empty{' or damaged' if contents.damage else ''}")
    return Recording(
        name=str(path),
        devices=[StreamTrace(contents, device, several=len(devices) > 1) for device in devices],
        settings=contents.settings,
        marks=contents.marks,
        dropped=contents.dropped,
        is_whole=contents.is_whole,
        damage=contents.damage,
    )


class _Contents:
    """What a file holds besides its events, found by going through it once."""

    def __init__(self, path: Path, memory: int) -> None:
        self.path = path
        self._memory = memory
        self.settings: dict[str, Any] = {}
        self.counts: dict[int, int] = {}
        self.stacks: dict[int, list[Frame]] = {}
        self.start: dict[int, list[_core.SegmentInfo]] = {}
        self.end: dict[int, list[_core.SegmentInfo]] = {}
        self.dropped = 0
        self.is_whole = False
        self.damage: str | None = None
        self.batch_count = 0
        self._frames: list[Frame] = []
        self._marks: list[tuple[dict[int, int], int, str]] = []
        messages = _count_messages(path)
        with self._open() as stream:
            while not self.is_whole and self.batch_count < messages.number:
                try:
                    self._take(*stream.next())
                except StopIteration:
                    break
                except DAMAGE as error:
                    self.damage = _told(error)
                    break
                self.batch_count += 1
        if not self.is_whole and self.damage is None:
            self.damage = messages.damage

    @property
    def event_count(self) -> int:
        """Of all devices."""
        return sum(self.counts.values())

    @property
    def marks(self) -> list[Mark]:
        """Each mark, once for each device."""
        return [
            Mark(before.get(device, 0), time_us, name, device)
            for before, time_us, name in self._marks
            for device in sorted(self.counts)
        ]

    def batches(self) -> Iterator[tuple[NDArray[np.int32], EventBatch]]:
        """The devices and the events of each batch that was read."""
        with self._open() as stream:
            for _ in range(self.batch_count):
                try:
                    devices, events, _ = stream.next()
                except (StopIteration, *DAMAGE):
                    raise InputError(f"{self.path}: changed while it was read") from None
                yield devices, events

    @contextmanager
    def _open(self) -> Iterator[_Batches]:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self.path.open("rb"))
                stream = stack.enter_context(pa.ipc.open_stream(file))
                schema = stream.schema
                metadata = schema.metadata or {}
                header = json.loads(metadata[_KEY])
                number = header["format"]
                is_known = number == _FORMAT and schema.equals(_SCHEMA)
                checksum = zlib.crc32(metadata[_KEY])
                is_sound = not is_known or metadata[_SUM_KEY] == str(checksum).encode()
                settings = check_settings(header["settings"])
            except DAMAGE:
                raise InputError(f"{self.path}: {_NONE}") from None
            if not is_known:
                raise InputError(f"{self.path}: a streaming trace of another version of plimsoll")
            if not is_sound:
                raise InputError(f"{self.path}: the streaming trace is damaged where it begins")
            self.settings = settings
            yield _Batches(stream, checksum)

    def _take(self, devices: NDArray[np.int32], events: EventBatch, facts: dict[str, Any]) -> None:
        """Check a batch, and keep what it says. A bad one raises, and leaves nothing behind."""
        check_events(events)
        if len(events) and (devices.min() < 0 or devices.max() >= MOST_DEVICES):
            raise DamageError("an event has an impossible device")
        known = len(self._frames)
        frames = [check_frame(*one) for one in facts.get("frames", [])]

        def frame(place: int) -> Frame:
            return self._frames[place] if place < known else frames[place - known]

        stacks = {
            int(number): [frame(int(place)) for place in stack]
            for number, stack in facts.get("stacks", {}).items()
        }
        within = {d: np.cumsum(devices == d) for d in np.unique(devices).tolist()}
        told = [*facts.get("marks", [])]
        copies = (len(self._marks) + len(told)) * len({*self.counts, *within})
        check_count(self.event_count + len(devices) + _EVENTS_PER_MARK * copies, self._memory)

        def before(row: int) -> dict[int, int]:
            """How many events of each device came before a row of the batch."""
            if not 0 <= row <= len(devices):
                raise DamageError("a mark has an impossible place")
            here = {d: int(counts[row - 1]) if row else 0 for d, counts in within.items()}
            return self.counts | {d: self.counts.get(d, 0) + here[d] for d in here}

        marks = [(before(int(row)), *check_moment(time_us, name)) for row, time_us, name in told]
        ends = [
            {
                int(device): check_segments([segment_from_json(segment) for segment in of])
                for device, of in given.items()
            }
            for given in (facts.get("start", {}), facts.get("end", {}))
        ]
        dropped, is_whole = int(facts.get("dropped", 0)), bool(facts.get("ended", False))
        if dropped < 0:
            raise DamageError("less than no events found no room")
        self.counts = before(len(devices))
        self._frames += frames
        self.stacks |= stacks
        self._marks += marks
        self.start |= ends[0]
        self.end |= ends[1]
        self.dropped = max(self.dropped, dropped)
        self.is_whole = is_whole


class StreamTrace(DeviceTrace):
    """The history of one device in a streaming trace."""

    def __init__(self, contents: _Contents, device: int, *, several: bool) -> None:
        self._contents = contents
        self._several = several
        self.device = device
        self.event_count = contents.counts[device]
        self.segments = contents.end.get(device, [])

    def batches(self) -> Iterator[EventBatch]:
        """See `DeviceTrace.batches`."""
        waiting: list[EventBatch] = []
        count = 0
        for devices, events in self._contents.batches():
            mine = events[devices == self.device] if self._several else events
            if len(mine) == 0:
                continue
            waiting.append(mine)
            count += len(mine)
            if count >= _MOST_ROWS:
                yield EventBatch.join(waiting)
                waiting, count = [], 0
        if waiting:
            yield EventBatch.join(waiting)

    def frames(self, stack: int) -> list[Frame]:
        """See `DeviceTrace.frames`."""
        return self._contents.stacks.get(stack, [])

    def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:  # noqa: ARG002
        """See `DeviceTrace.start`."""
        return self._contents.start.get(self.device, [])


_NONE = "not a streaming trace of plimsoll"


class _Messages(NamedTuple):
    """The batches of a stream that may be decompressed, and what is wrong with the next one."""

    number: int
    damage: str | None


def _count_messages(path: Path) -> _Messages:
    with path.open("rb") as file:
        # What is being written may grow faster than it is read.
        messages = read_messages(file, path.stat().st_size)
        if next(messages, None) is None:
            raise InputError(f"{path}: {_NONE}")
        count = 0
        try:
            for metadata, body in messages:
                check_message(metadata, body, _MOST_ROWS)
                count += 1
        except DamageError as error:
            return _Messages(count, str(error))
    return _Messages(count, None)


class _Batches:
    """The batches of an open stream, each with its checksum."""

    def __init__(self, stream: Any, checksum: int) -> None:
        self._stream = stream
        self._sum = checksum

    def next(self) -> tuple[NDArray[np.int32], EventBatch, dict[str, Any]]:
        """Devices, events and facts of the next one.

        Raises:
            StopIteration: If there is none.
            DamageError: If it was changed since it was written.
            Exception: Any of `DAMAGE`, if it cannot be read.
        """
        batch, metadata = self._stream.read_next_batch_with_custom_metadata()
        batch.validate()
        if any(column.null_count for column in batch.columns):
            raise DamageError("a value is missing")
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
        devices = batch.column("device").to_numpy(zero_copy_only=False)
        metadata = {} if metadata is None else dict(metadata)
        text = metadata.get(_KEY, b"")
        self._sum = _checksum(self._sum, text, devices, columns.values())
        if metadata.get(_SUM_KEY) != str(self._sum).encode():
            raise DamageError("its checksum is wrong")
        return devices, EventBatch.of(columns), json.loads(text) if text else {}


def _checksum(
    checksum: int, text: bytes, devices: NDArray[np.int32], columns: Iterable[NDArray[Any]]
) -> int:
    checksum = zlib.crc32(text, checksum)
    for column in (devices, *columns):
        checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
    return checksum


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, DamageError) else "a batch cannot be read"
