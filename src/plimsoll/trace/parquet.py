"""Columnar traces: a history as Parquet, which streams in both directions.

The columns are those of `EventBatch`, with `device` before them; devices follow each other. What is
not an event, the settings and the segments at both ends, is JSON in the file's metadata under the
key `plimsoll`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.trace.events import ACTIONS, COLUMNS, EventBatch
from plimsoll.trace.recording import DeviceTrace, Recording

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_FORMAT = 1
_KEY = b"plimsoll"
_BATCH = 1 << 17
_SCHEMA = pa.schema(
    [
        ("device", pa.int32()),
        *((name, pa.from_numpy_dtype(dtype)) for name, dtype in COLUMNS.items()),
    ]
)


def write_parquet(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Keep a recording as a columnar trace.

    Raises:
        InputError: If `path` exists already, or the start of the history cannot be reconstructed.
    """
    with TraceWriter(path, settings=recording.settings) as writer:
        for trace in recording.devices:
            start = trace.start(recording.conf, _core.NEWEST_VERSION)
            for batch in trace.batches():
                writer.write(trace.device, batch)
            writer.end_device(trace.device, segments=trace.segments, start=start)


class TraceWriter:
    """Writes a columnar trace batch by batch, one device after the other.

    The file appears under its name only when the `with` block ends without an error.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, settings: dict[str, Any] | None = None
    ) -> None:
        self._target = NewFile(path)
        self._settings = settings or {}
        self._devices: dict[int, dict[str, Any]] = {}

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
            metadata = {"format": _FORMAT, "settings": self._settings, "devices": self._devices}
            self._writer.add_key_value_metadata({_KEY.decode(): json.dumps(metadata)})

    def write(self, device: int, batch: EventBatch) -> None:
        """Append events of `device`."""
        entry = self._devices.setdefault(device, {"events": 0, "segments": [], "start": []})
        entry["events"] += len(batch)
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
    ) -> None:
        """State the segments of `device` before its first and after its last event."""
        entry = self._devices.setdefault(device, {"events": 0})
        entry["segments"] = [_segment_to_json(segment) for segment in segments]
        entry["start"] = [_segment_to_json(segment) for segment in start]


def read_parquet(path: Path) -> Recording:
    """Open a columnar trace; events are read only when they are gone through.

    Raises:
        InputError: If it is not a trace that `write_parquet` or `TraceWriter` made.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            metadata = json.loads((file.metadata.metadata or {})[_KEY])
        is_known = metadata["format"] == _FORMAT and schema.equals(_SCHEMA)
        several = len(metadata["devices"]) > 1
        devices: list[DeviceTrace] = [
            ParquetTrace(path, int(device), entry, several=several)
            for device, entry in metadata["devices"].items()
            if entry["events"] > 0 and int(device) >= 0
        ]
        settings = dict(metadata["settings"])
    except (pa.ArrowException, OSError, ArithmeticError, AttributeError, LookupError, TypeError,
            ValueError, RecursionError):  # fmt: skip
        raise InputError(f"{path}: not a columnar trace of plimsoll") from None
    if not is_known:
        raise InputError(f"{path}: a columnar trace of another version of plimsoll")
    if not devices:
        raise InputError(f"{path}: the history is empty")
    return Recording(name=str(path), devices=devices, settings=settings)


class ParquetTrace(DeviceTrace):
    """The history of one device in a columnar trace."""

    def __init__(self, path: Path, device: int, entry: dict[str, Any], *, several: bool) -> None:
        self._path = path
        self._several = several
        self.device = device
        self.event_count = int(entry["events"])
        self.segments = [_segment_from_json(segment) for segment in entry["segments"]]
        self._start = [_segment_from_json(segment) for segment in entry["start"]]

    def batches(self) -> Iterator[EventBatch]:
        """See `DeviceTrace.batches`."""
        columns = [*(["device"] if self._several else []), *COLUMNS]
        try:
            with pq.ParquetFile(self._path, pre_buffer=False) as file:
                for rows in file.iter_batches(
                    batch_size=_BATCH, columns=columns, use_threads=False
                ):
                    if any(column.null_count for column in rows.columns):
                        raise InputError(f"{self._path}: a value is missing")
                    batch = EventBatch.of(
                        {name: rows.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
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


def _segment_to_json(segment: _core.SegmentInfo) -> dict[str, Any]:
    return {
        "address": segment.address,
        "total_size": segment.total_size,
        "stream": segment.stream,
        "pool": [segment.pool.first, segment.pool.second],
        "small": segment.small,
        "expandable": segment.expandable,
        "blocks": [[b.address, b.size, b.requested, b.state] for b in segment.blocks],
    }


def _segment_from_json(value: dict[str, Any]) -> _core.SegmentInfo:
    return _core.SegmentInfo(
        value["address"],
        value["total_size"],
        value["stream"],
        _core.PoolId(*value["pool"]),
        value["small"],
        value["expandable"],
        0,
        [_core.BlockInfo(*block) for block in value["blocks"]],
    )
