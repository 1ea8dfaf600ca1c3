"""Reads a streaming trace, even an untrusted one, up to its last whole batch."""

from __future__ import annotations

import json
import zlib
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.recordings import checks
from plimsoll.recordings.events import COLUMNS, EventBatch, Frame
from plimsoll.recordings.expansion import check_message, read_messages
from plimsoll.recordings.recording import DeviceTrace, Mark, Recording, stacks_of_blocks
from plimsoll.recordings.schema import EVENT_SCHEMA
from plimsoll.recordings.segment_rows import segment_from_json
from plimsoll.recordings.stream_format import FORMAT, KEY, MOST_ROWS, SUM_KEY, checksum_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from plimsoll.recordings.label import Label

_EVENTS_PER_MARK = 8  # for each device, a mark takes the memory of this many events
_EVENTS_PER_LABEL = 4


def read(path: Path, memory: int, *, needs_history: bool = True) -> Recording:  # noqa: ARG001
    """Opens a streaming trace, up to its last whole batch.

    Args:
        path: The path of the file.
        memory: The most bytes that all events may take.
        needs_history: Ignored: every trace has a history.

    Raises:
        InputError: If the file is no streaming trace, or has no events.
        ReadingLimitError: If the events take more than `memory`.
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
        labels=contents.labels,
        dropped=contents.dropped,
        is_whole=contents.is_whole,
        damage=contents.damage,
    )


class _Contents:
    """Collects a file's data, except the events, in one pass over the file."""

    def __init__(self, path: Path, memory: int) -> None:
        self.path = path
        self._memory = memory
        self.settings: dict[str, Any] = {}
        self.counts: dict[int, int] = {}
        self.stacks: dict[int, list[Frame]] = {}
        self.start: dict[int, list[_core.SegmentInfo]] = {}
        self.end: dict[int, list[_core.SegmentInfo]] = {}
        self.labels: list[Label] = []
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
                except checks.DAMAGE as error:
                    self.damage = _told(error)
                    break
                self.batch_count += 1
        if not self.is_whole and self.damage is None:
            self.damage = messages.damage

    @property
    def event_count(self) -> int:
        """The number of events of all devices."""
        return sum(self.counts.values())

    @property
    def marks(self) -> list[Mark]:
        """Returns the marks; every device has its own copy of each mark."""
        return [
            Mark(before.get(device, 0), time_us, name, device)
            for before, time_us, name in self._marks
            for device in sorted(self.counts)
        ]

    def batches(self) -> Iterator[tuple[NDArray[np.int32], EventBatch]]:
        """Yields the devices and events of each readable batch."""
        with self._open() as stream:
            for _ in range(self.batch_count):
                try:
                    devices, events, _ = stream.next()
                except (StopIteration, *checks.DAMAGE):
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
                header = json.loads(metadata[KEY])
                number = header["format"]
                is_known = number == FORMAT and schema.equals(EVENT_SCHEMA)
                checksum = zlib.crc32(metadata[KEY])
                is_sound = not is_known or metadata[SUM_KEY] == str(checksum).encode()
                settings = checks.check_settings(header["settings"])
            except checks.DAMAGE:
                raise InputError(f"{self.path}: {_NONE}") from None
            if not is_known:
                raise InputError(f"{self.path}: a streaming trace of another version of plimsoll")
            if not is_sound:
                raise InputError(f"{self.path}: the streaming trace is damaged where it begins")
            self.settings = settings
            yield _Batches(stream, checksum)

    def _take(self, devices: NDArray[np.int32], events: EventBatch, facts: dict[str, Any]) -> None:
        """Checks a batch and keeps its data. Raises for a bad batch without changing anything."""
        checks.check_events(events)
        if len(events) and (devices.min() < 0 or devices.max() >= checks.MOST_DEVICES):
            raise checks.DamageError("an event has an impossible device")
        known = len(self._frames)
        frames = [checks.check_frame(*one) for one in facts.get("frames", [])]

        def frame(place: int) -> Frame:
            return self._frames[place] if place < known else frames[place - known]

        stacks = {
            int(number): [frame(int(place)) for place in stack]
            for number, stack in facts.get("stacks", {}).items()
        }
        within = {d: np.cumsum(devices == d) for d in np.unique(devices).tolist()}
        told = [*facts.get("marks", [])]
        copies = (len(self._marks) + len(told)) * len({*self.counts, *within})
        said = [(name, *row) for name, rows in facts.get("labels", {}).items() for row in rows]
        extra = _EVENTS_PER_MARK * copies + _EVENTS_PER_LABEL * (len(self.labels) + len(said))
        checks.check_count(self.event_count + len(devices) + extra, self._memory)

        def before(row: int) -> dict[int, int]:
            """Counts each device's events from the start of the file to a row of the batch."""
            if not 0 <= row <= len(devices):
                raise checks.DamageError("a mark or a label has an impossible place")
            here = {d: int(counts[row - 1]) if row else 0 for d, counts in within.items()}
            return self.counts | {d: self.counts.get(d, 0) + here[d] for d in here}

        marks = [
            (before(int(row)), *checks.check_moment(time_us, name)) for row, time_us, name in told
        ]
        labels = [
            checks.check_label(before(int(row)).get(int(device), 0), address, name, device)
            for name, row, device, address in said
        ]
        ends = [
            {
                int(device): checks.check_segments([segment_from_json(segment) for segment in of])
                for device, of in given.items()
            }
            for given in (facts.get("start", {}), facts.get("end", {}))
        ]
        process = facts.get("process")
        if process is not None:
            ProcessPlace.from_dict(process)
        limits = checks.check_limits(facts.get("limits", {}))
        dropped, is_whole = int(facts.get("dropped", 0)), bool(facts.get("ended", False))
        if dropped < 0:
            raise checks.DamageError("less than no events found no room")
        if process is not None:
            self.settings["process"] = process
        for device, limit in limits.items():
            self.settings.setdefault("limits", {}).setdefault(device, []).append(limit)
        self.counts = before(len(devices))
        self._frames += frames
        self.stacks |= stacks
        self._marks += marks
        self.labels += sorted(labels, key=lambda label: label.event)
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
            if count >= MOST_ROWS:
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

    def start_stacks(self) -> dict[int, int]:
        """See `DeviceTrace.start_stacks`."""
        return stacks_of_blocks(self._contents.start.get(self.device, []))


_NONE = "not a streaming trace of plimsoll"


class _Messages(NamedTuple):
    """How many batches are safe to decompress, counted from the first one.

    `damage` says why the next batch is not safe; None if all batches are safe.
    """

    number: int
    damage: str | None


def _count_messages(path: Path) -> _Messages:
    with path.open("rb") as file:
        # The size is read once: a recording in progress may grow faster than it is read.
        messages = read_messages(file, path.stat().st_size)
        if next(messages, None) is None:
            raise InputError(f"{path}: {_NONE}")
        count = 0
        try:
            for metadata, body in messages:
                check_message(metadata, body, MOST_ROWS)
                count += 1
        except checks.DamageError as error:
            return _Messages(count, str(error))
    return _Messages(count, None)


class _Batches:
    """Reads the batches of an open stream, and checks the checksum of each."""

    def __init__(self, stream: Any, checksum: int) -> None:
        self._stream = stream
        self._sum = checksum

    def next(self) -> tuple[NDArray[np.int32], EventBatch, dict[str, Any]]:
        """Returns the devices, the events and the other data of the next batch.

        Raises:
            StopIteration: If there is no further batch.
            DamageError: If the batch was changed after it was written.
            Exception: Any of `DAMAGE`, if the batch cannot be read.
        """
        batch, metadata = self._stream.read_next_batch_with_custom_metadata()
        batch.validate()
        if any(column.null_count for column in batch.columns):
            raise checks.DamageError("a value is missing")
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
        devices = batch.column("device").to_numpy(zero_copy_only=False)
        metadata = {} if metadata is None else dict(metadata)
        text = metadata.get(KEY, b"")
        self._sum = checksum_of(self._sum, text, devices, columns.values())
        if metadata.get(SUM_KEY) != str(self._sum).encode():
            raise checks.DamageError("its checksum is wrong")
        return devices, EventBatch.of(columns), json.loads(text) if text else {}


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, checks.DamageError) else "a batch cannot be read"
