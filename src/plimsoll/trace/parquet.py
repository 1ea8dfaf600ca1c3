"""Columnar traces: a history as Parquet, which streams in both directions.

The columns are those of `EventBatch`, with `device` before them; devices follow each other. What is
not an event, the settings, the marks and the segments at both ends, is JSON in the file's metadata
under the key `plimsoll`; call stacks are spelled out under `plimsoll.stacks`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.trace.events import ACTIONS, COLUMNS, EventBatch
from plimsoll.trace.recording import DeviceTrace, Frame, Mark, Recording
from plimsoll.trace.segments import segment_from_json, segment_to_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

_FORMAT = 2
_KEY = b"plimsoll"
_STACKS_KEY = b"plimsoll.stacks"
_BATCH = 1 << 17
_SCHEMA = pa.schema(
    [
        ("device", pa.int32()),
        *((name, pa.from_numpy_dtype(dtype)) for name, dtype in COLUMNS.items()),
    ]
)
_NEW_IN_FORMAT_2 = ("stack", "shared")
_SCHEMAS = {
    1: pa.schema([field for field in _SCHEMA if field.name not in _NEW_IN_FORMAT_2]),
    2: _SCHEMA,
}
_NOT_OURS = (
    pa.ArrowException, OSError, ArithmeticError, AttributeError, LookupError, TypeError,
    ValueError, RecursionError,
)  # fmt: skip
"""What metadata of somebody else's making can raise."""


def write_parquet(
    recording: Recording, path: str | os.PathLike[str], *, force: bool | None = None
) -> None:
    """Keep a recording as a columnar trace.

    Args:
        recording: What to keep.
        path: Of the file.
        force: See `NewFile`.

    Raises:
        InputError: If `path` exists already or cannot be written, or the start of the history
            cannot be reconstructed.
    """
    with TraceWriter(
        path,
        force=force,
        settings=recording.settings,
        marks=recording.marks,
        dropped=recording.dropped,
        is_whole=recording.is_whole,
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
        dropped: int = 0,
        is_whole: bool = True,
    ) -> None:
        self._target = NewFile(path, force=force)
        self._settings = settings or {}
        self._marks = list(marks)
        self._losses = {"dropped": dropped, "is_whole": is_whole}
        self._devices: dict[int, dict[str, Any]] = {}
        self._used: dict[int, set[int]] = {}
        self._stacks = _StackTable()

    def __enter__(self) -> TraceWriter:
        self._stack = ExitStack()
        file = self._stack.enter_context(self._target)
        self._writer = self._stack.enter_context(
            pq.ParquetWriter(file, _SCHEMA, compression="zstd")
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            if error is not None:
                raise error
            metadata = {
                "format": _FORMAT,
                "settings": self._settings,
                "marks": [[m.event, m.time_us, m.name, m.device] for m in self._marks],
                "devices": self._devices,
                **self._losses,
            }
            self._writer.add_key_value_metadata(
                {
                    _KEY.decode(): json.dumps(metadata),
                    _STACKS_KEY.decode(): json.dumps(self._stacks.to_json()),
                }
            )

    def write(self, device: int, batch: EventBatch) -> None:
        """Append events of `device`."""
        entry = self._devices.setdefault(device, {"events": 0, "segments": [], "start": []})
        entry["events"] += len(batch)
        self._used.setdefault(device, set()).update(np.unique(batch.stack).tolist())
        columns = [pa.array(getattr(batch, name)) for name in COLUMNS]
        devices = pa.array(np.full(len(batch), device, dtype=np.int32))
        self._writer.write_batch(
            pa.RecordBatch.from_arrays([devices, *columns], schema=_SCHEMA), row_group_size=1 << 20
        )

    def end_device(
        self,
        device: int,
        *,
        segments: list[_core.SegmentInfo],
        start: list[_core.SegmentInfo],
        frames: Callable[[int], list[Frame]] | None = None,
    ) -> None:
        """State the segments of `device` before its first and after its last event.

        Args:
            device: Its number.
            segments: After the last event.
            start: Before the first one.
            frames: Spells out the call stacks; without it they have no frames.
        """
        entry = self._devices.setdefault(device, {"events": 0})
        if frames is not None:
            used = self._used.get(device, set())
            used |= {number for part in (segments, start) for number in _stacks_of(part)}
            self._stacks.add(device, {number: frames(number) for number in used - {0}})
        entry["segments"] = [segment_to_json(segment) for segment in segments]
        entry["start"] = [segment_to_json(segment) for segment in start]


def read_parquet(path: Path) -> Recording:
    """Open a columnar trace; events are read only when they are gone through.

    Raises:
        InputError: If it is not a trace that `write_parquet` or `TraceWriter` made.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            metadata = json.loads((file.metadata.metadata or {})[_KEY])
        number = metadata["format"]
        is_known = number in _SCHEMAS and schema.equals(_SCHEMAS[number])
        columns = [name for name in COLUMNS if name in schema.names]
        several = len(metadata["devices"]) > 1
        devices: list[DeviceTrace] = [
            ParquetTrace(path, int(device), entry, columns, several=several)
            for device, entry in metadata["devices"].items()
            if entry["events"] > 0 and int(device) >= 0
        ]
        settings = dict(metadata["settings"])
        marks = [
            Mark(int(event), int(time_us), str(name), device if device is None else int(device))
            for event, time_us, name, device in metadata.get("marks", [])
        ]
        dropped = int(metadata.get("dropped", 0))
        is_whole = bool(metadata.get("is_whole", True))
    except _NOT_OURS:
        raise InputError(f"{path}: not a columnar trace of plimsoll") from None
    if not is_known:
        raise InputError(f"{path}: a columnar trace of another version of plimsoll")
    if not devices:
        raise InputError(f"{path}: the history is empty")
    return Recording(
        name=str(path),
        devices=devices,
        settings=settings,
        marks=marks,
        dropped=dropped,
        is_whole=is_whole,
    )


class ParquetTrace(DeviceTrace):
    """The history of one device in a columnar trace."""

    def __init__(
        self,
        path: Path,
        device: int,
        entry: dict[str, Any],
        columns: list[str],
        *,
        several: bool,
    ) -> None:
        self._path = path
        self._columns = columns
        self._several = several
        self.device = device
        self.event_count = int(entry["events"])
        self.segments = [segment_from_json(segment) for segment in entry["segments"]]
        self._start = [segment_from_json(segment) for segment in entry["start"]]

    def batches(self) -> Iterator[EventBatch]:
        """See `DeviceTrace.batches`."""
        columns = [*(["device"] if self._several else []), *self._columns]
        try:
            with pq.ParquetFile(self._path, pre_buffer=False) as file:
                for rows in file.iter_batches(
                    batch_size=_BATCH, columns=columns, use_threads=False
                ):
                    if any(column.null_count for column in rows.columns):
                        raise InputError(f"{self._path}: a value is missing")
                    batch = EventBatch.of(
                        {
                            name: rows.column(name).to_numpy(zero_copy_only=False)
                            for name in self._columns
                        }
                    )
                    if self._several:
                        mine = rows.column("device").to_numpy() == self.device
                        batch = batch[mine]
                    if (batch.action >= len(ACTIONS)).any():
                        raise InputError(f"{self._path}: an event has an unknown action")
                    if len(batch) > 0:
                        yield batch
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self._path}: cannot be read: {error}") from None

    def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:  # noqa: ARG002
        """See `DeviceTrace.start`."""
        return self._start

    def frames(self, stack: int) -> list[Frame]:
        """See `DeviceTrace.frames`."""
        return self._stacks.get(stack, [])

    @cached_property
    def _stacks(self) -> dict[int, list[Frame]]:
        try:
            metadata = pq.read_metadata(self._path).metadata or {}
            return _StackTable.frames_by_number(
                json.loads(metadata.get(_STACKS_KEY, b"{}")), self.device
            )
        except _NOT_OURS:
            raise InputError(f"{self._path}: its call stacks cannot be read") from None


class _StackTable:
    """Call stacks by device and number, with each frame written once."""

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
    def frames_by_number(value: dict[str, Any], device: int) -> dict[int, list[Frame]]:
        frames = [(str(file), int(line), str(name)) for file, line, name in value.get("frames", [])]
        stacks = value.get("devices", {}).get(str(device), {})
        return {int(number): [frames[i] for i in stack] for number, stack in stacks.items()}


def _stacks_of(segments: list[_core.SegmentInfo]) -> Iterator[int]:
    for segment in segments:
        yield segment.context
        yield from (block.context for block in segment.blocks)
