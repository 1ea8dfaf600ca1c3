"""Reads and writes columnar traces: a history as a Parquet file, batch by batch.

The columns are `device` and then those of `EventBatch`; all events of a device are together.
plimsoll adds three keys to the file's metadata:

- `plimsoll` holds, as JSON, the settings, the marks, the labels, and the segments of each device
  before its first event and after its last one.
- `plimsoll.stacks` holds the call stacks, as JSON.
- `plimsoll.crc` holds a CRC-32, as decimal digits. It covers the bytes of the values above,
  one after the other.

Each page of the columns has a checksum of Parquet's own.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import ExitStack
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.recordings import checks
from plimsoll.recordings.events import COLUMNS, EventBatch, Frame
from plimsoll.recordings.expansion import RowGroup, check_pages, read_row_groups
from plimsoll.recordings.recording import DeviceTrace, Mark, Recording, stacks_of_blocks
from plimsoll.recordings.schema import EVENT_SCHEMA
from plimsoll.recordings.segment_rows import segment_from_json, segment_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from plimsoll.recordings.label import Label

_FORMAT = 3
_KEY = b"plimsoll"
_STACKS_KEY = b"plimsoll.stacks"
_SUM_KEY = b"plimsoll.crc"
_BATCH = 1 << 17
_LONGEST_DAMAGE = 200  # characters, for the description of a damage
_NEW_IN_FORMAT_2 = ("stack", "shared")
_SCHEMAS = {
    1: pa.schema([field for field in EVENT_SCHEMA if field.name not in _NEW_IN_FORMAT_2]),
    2: EVENT_SCHEMA,
    3: EVENT_SCHEMA,
}
_WITH_CHECKSUM = 3
_SAFELY = {
    "page_checksum_verification": True,
    "thrift_string_size_limit": 1 << 30,
    "thrift_container_size_limit": 1 << 20,
}
"""The options for opening untrusted files."""


def write_parquet(
    recording: Recording, path: str | os.PathLike[str], *, force: bool | None = None
) -> None:
    """Writes a recording as a columnar trace.

    >>> recording = plimsoll.read_recording("run.pickle")  # doctest: +SKIP
    >>> plimsoll.write_parquet(recording, "run.parquet")  # doctest: +SKIP

    Args:
        recording: The recording to write.
        path: The path of the file.
        force: Whether an existing file is replaced, see `NewFile`.

    Raises:
        InputError: If `path` exists already or cannot be written, or the segments at the start of
            the history cannot be reconstructed.
    """
    with TraceWriter(
        path,
        force=force,
        settings=recording.settings,
        marks=recording.marks,
        labels=recording.labels,
        dropped=recording.dropped,
        is_whole=recording.is_whole,
        damage=recording.damage,
    ) as writer:
        for trace in recording.devices:
            start = trace.start(recording.conf, _core.NEWEST_VERSION)
            for batch in trace.batches():
                writer.write(trace.device, batch)
            writer.end_device(
                trace.device, segments=trace.segments, start=start, frames=trace.frames
            )


class TraceWriter:
    """Writes a columnar trace batch by batch, one device after the other.

    The file appears under its name only when the `with` block ends without an error.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool | None = None,
        settings: dict[str, Any] | None = None,
        marks: Iterable[Mark] = (),
        labels: Iterable[Label] = (),
        dropped: int = 0,
        is_whole: bool = True,
        damage: str | None = None,
    ) -> None:
        self._target = NewFile(path, force=force)
        self._settings = settings or {}
        self._marks = list(marks)
        self._labels = list(labels)
        self._losses = {"dropped": dropped, "is_whole": is_whole, "damage": damage}
        self._devices: dict[int, dict[str, Any]] = {}
        self._used: dict[int, set[int]] = {}
        self._stacks = _StackTable()

    def __enter__(self) -> TraceWriter:
        self._stack = ExitStack()
        file = self._stack.enter_context(self._target)
        self._writer = self._stack.enter_context(
            pq.ParquetWriter(file, EVENT_SCHEMA, compression="zstd", write_page_checksum=True)
        )
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with self._stack:
            if error is not None:
                raise error
            metadata = {
                "format": _FORMAT,
                "settings": self._settings,
                "marks": [[m.event, m.time_us, m.name, m.device] for m in self._marks],
                "labels": [[m.event, m.address, m.category, m.device] for m in self._labels],
                "devices": self._devices,
                **self._losses,
            }
            texts = [json.dumps(metadata), json.dumps(self._stacks.to_json())]
            keys = [key.decode() for key in (_KEY, _STACKS_KEY, _SUM_KEY)]
            checksum = _checksum(*(text.encode() for text in texts))
            self._writer.add_key_value_metadata(
                dict(zip(keys, [*texts, str(checksum)], strict=True))
            )

    def write(self, device: int, batch: EventBatch) -> None:
        """Appends events of `device`."""
        entry = self._devices.setdefault(device, {"events": 0, "segments": [], "start": []})
        entry["events"] += len(batch)
        self._used.setdefault(device, set()).update(np.unique(batch.stack).tolist())
        columns = [pa.array(getattr(batch, name)) for name in COLUMNS]
        devices = pa.array(np.full(len(batch), device, dtype=np.int32))
        self._writer.write_batch(
            pa.RecordBatch.from_arrays([devices, *columns], schema=EVENT_SCHEMA),
            row_group_size=1 << 20,
        )

    def end_device(
        self,
        device: int,
        *,
        segments: list[_core.SegmentInfo],
        start: list[_core.SegmentInfo],
        frames: Callable[[int], list[Frame]] | None = None,
    ) -> None:
        """Adds the segments that `device` had before its first event, and after its last one.

        Args:
            device: The device's number.
            segments: The segments after the last event.
            start: The segments before the first event.
            frames: A function that returns the frames of a stack; without it stacks have no frames.
        """
        entry = self._devices.setdefault(device, {"events": 0})
        if frames is not None:
            used = self._used.get(device, set())
            used |= {number for part in (segments, start) for number in _stacks_of(part)}
            self._stacks.add(device, {number: frames(number) for number in used - {0}})
        entry["segments"] = [segment_to_json(segment) for segment in segments]
        entry["start"] = [segment_to_json(segment) for segment in start]


def read(path: Path, memory: int, *, needs_history: bool = True) -> Recording:  # noqa: ARG001
    """Opens a columnar trace; events are read only on iteration.

    Args:
        path: The path of the file.
        memory: The most bytes that all events may take.
        needs_history: Ignored: every trace has a history.

    Raises:
        InputError: If the file was not made by `write_parquet` or `TraceWriter`, or is damaged.
        ReadingLimitError: If the events take more than `memory`.
    """
    try:
        with path.open("rb") as content, pq.ParquetFile(content, **_SAFELY) as file:
            schema = file.schema_arrow
            texts = file.metadata.metadata or {}
            metadata = json.loads(texts[_KEY])
            number = metadata["format"]
            is_known = number in _SCHEMAS and schema.equals(_SCHEMAS[number])
            if is_known and number >= _WITH_CHECKSUM:
                checksum = _checksum(texts[_KEY], texts[_STACKS_KEY])
                if texts[_SUM_KEY] != str(checksum).encode():
                    raise checks.DamageError("its checksum is wrong")
            groups = read_row_groups(content, os.fstat(content.fileno()).st_size)
            rows = sum(group.rows for group in groups)
            if rows != file.metadata.num_rows:
                raise checks.DamageError("the number of its events is wrong")
            checks.check_count(rows, memory)
            expanded = _expanded_bytes(content, groups)
        columns = [name for name in COLUMNS if name in schema.names]
        several = len(metadata["devices"]) > 1
        stacks = _Stacks(path)
        devices: list[DeviceTrace] = [
            ParquetTrace(path, _device_number(device), entry, columns, stacks, several=several)
            for device, entry in metadata["devices"].items()
            if entry["events"] > 0
        ]
        if sum(trace.event_count for trace in devices) != rows:
            raise checks.DamageError("the number of its events is wrong")
        settings = checks.check_settings(metadata["settings"])
        marks = [
            Mark(int(event), *checks.check_moment(time_us, name), _device(device))
            for event, time_us, name, device in metadata.get("marks", [])
            if event >= 0
        ]
        labels = [checks.check_label(*one) for one in metadata.get("labels", [])]
        dropped = int(metadata.get("dropped", 0))
        is_whole = bool(metadata.get("is_whole", True))
        damage = metadata.get("damage")
        if dropped < 0:
            raise checks.DamageError("less than no events found no room")
    except checks.DamageError as error:
        raise InputError(f"{path}: the columnar trace is damaged: {error}") from None
    except checks.DAMAGE:
        raise InputError(f"{path}: not a columnar trace of plimsoll") from None
    if not is_known:
        raise InputError(f"{path}: a columnar trace of another version of plimsoll")
    if not devices:
        raise InputError(f"{path}: the history is empty")
    if expanded > memory:
        raise _core.ReadingLimitError
    return Recording(
        name=str(path),
        devices=devices,
        settings=settings,
        marks=marks,
        labels=labels,
        dropped=dropped,
        is_whole=is_whole,
        damage=None if damage is None else str(damage)[:_LONGEST_DAMAGE],
    )


def _checksum(metadata: bytes, stacks: bytes) -> int:
    return zlib.crc32(stacks, zlib.crc32(metadata))


def _device(device: object) -> int | None:
    return None if device is None else int(device)  # type: ignore[call-overload]


def _device_number(name: str) -> int:
    number = int(name)
    if str(number) != name or not 0 <= number < checks.MOST_DEVICES:
        raise checks.DamageError("a device has an impossible number")
    return number


def _expanded_bytes(content: IO[bytes], groups: list[RowGroup]) -> int:
    """Returns the decompressed bytes of a file's pages.

    Raises:
        DamageError: If a page is too large, or pages occur twice.
    """
    columns = [column for group in groups for column in group.columns]
    if sum(column.size for column in columns) > os.fstat(content.fileno()).st_size:
        raise checks.DamageError("its columns are larger than the file")
    return sum(check_pages(content, column.first, column.size) for column in columns)


class ParquetTrace(DeviceTrace):
    """The history of one device in a columnar trace."""

    def __init__(
        self,
        path: Path,
        device: int,
        entry: dict[str, Any],
        columns: list[str],
        stacks: _Stacks,
        *,
        several: bool,
    ) -> None:
        self._path = path
        self._columns = columns
        self._stacks = stacks
        self._several = several
        self.device = device
        self.event_count = int(entry["events"])
        self.segments = checks.check_segments([segment_from_json(one) for one in entry["segments"]])
        self._start = checks.check_segments([segment_from_json(one) for one in entry["start"]])

    def batches(self) -> Iterator[EventBatch]:
        """See `DeviceTrace.batches`."""
        count = 0
        try:
            for batch in self._batches():
                count += len(batch)
                if count > self.event_count:
                    raise checks.DamageError("the number of its events is wrong")
                if len(batch) > 0:
                    yield checks.check_events(batch)
            if count != self.event_count:
                raise checks.DamageError("the number of its events is wrong")
        except checks.DamageError as error:
            raise InputError(f"{self._path}: the columnar trace is damaged: {error}") from None
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self._path}: cannot be read: {error}") from None

    def _batches(self) -> Iterator[EventBatch]:
        columns = [*(["device"] if self._several else []), *self._columns]
        with (
            self._path.open("rb") as content,
            pq.ParquetFile(content, pre_buffer=False, **_SAFELY) as file,
        ):
            for rows in file.iter_batches(batch_size=_BATCH, columns=columns, use_threads=False):
                if any(column.null_count for column in rows.columns):
                    raise checks.DamageError("a value is missing")
                batch = EventBatch.of(
                    {
                        name: rows.column(name).to_numpy(zero_copy_only=False)
                        for name in self._columns
                    }
                )
                if self._several:
                    batch = batch[rows.column("device").to_numpy() == self.device]
                yield batch

    def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:  # noqa: ARG002
        """See `DeviceTrace.start`."""
        return self._start

    def start_stacks(self) -> dict[int, int]:
        """See `DeviceTrace.start_stacks`."""
        return stacks_of_blocks(self._start)

    def frames(self, stack: int) -> list[Frame]:
        """See `DeviceTrace.frames`."""
        return self._stacks.frames(self.device, stack)


class _Stacks:
    """The call stacks of a file, read on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def frames(self, device: int, stack: int) -> list[Frame]:
        """Returns the frames of a stack, innermost first; empty for an unknown stack.

        Raises:
            InputError: If the stacks cannot be read.
        """
        return self._by_device.get(device, {}).get(stack, [])

    @cached_property
    def _by_device(self) -> dict[int, dict[int, list[Frame]]]:
        try:
            with self._path.open("rb") as content:
                metadata = pq.read_metadata(content).metadata or {}
            return _StackTable.from_json(json.loads(metadata.get(_STACKS_KEY, b"{}")))
        except checks.DAMAGE:
            raise InputError(f"{self._path}: its call stacks cannot be read") from None


class _StackTable:
    """Collects the call stacks to write, keyed by device and stack number.

    Each frame is written only once.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._devices: dict[int, dict[int, list[int]]] = {}

    def add(self, device: int, stacks: dict[int, list[Frame]]) -> None:
        self._devices[device] = {
            number: [self._frames.setdefault(frame, len(self._frames)) for frame in frames]
            for number, frames in stacks.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {"frames": list(self._frames), "devices": self._devices}

    @staticmethod
    def from_json(value: dict[str, Any]) -> dict[int, dict[int, list[Frame]]]:
        """Returns each device's stacks by number, from the result of `to_json`."""
        frames = [checks.check_frame(*one) for one in value.get("frames", [])]
        return {
            int(device): {int(number): [frames[i] for i in stack] for number, stack in of.items()}
            for device, of in value.get("devices", {}).items()
        }


def _stacks_of(segments: list[_core.SegmentInfo]) -> Iterator[int]:
    for segment in segments:
        yield segment.context
        yield from (block.context for block in segment.blocks)
