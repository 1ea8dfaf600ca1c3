"""Reading recordings from files, safely.

A pickle can run code when it is loaded by Python's own reader, and snapshots travel between people;
so they are read by the engine's reader, which can build nothing but plain data.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll import _core
from plimsoll.endings import READABLE, is_recording_name
from plimsoll.errors import InputError
from plimsoll.recordings.checks import (
    DAMAGE,
    DamageError,
    check_events,
    check_label,
    check_segments,
    check_settings,
    reading_memory,
    too_large,
)
from plimsoll.recordings.events import COLUMNS, Action, EventBatch
from plimsoll.recordings.recording import LoadedTrace, Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from plimsoll.recordings.label import Label

_PART = 1 << 20  # bytes that are read at a time
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_BINARY_PICKLE = b"\x80"
_PICKLES = (_BINARY_PICKLE, b"(", b"]", b"}", b"c")  # how one can begin


def read_recording(
    path: str | PathLike[str],
    *,
    needs_history: bool = True,
    memory: int | str | None = None,
    goes_by: bool = False,
) -> Recording:
    """Read a snapshot of PyTorch's or a trace of plimsoll's; `endings.py` lists their names.

    The kind of file is told by its first bytes, not by its name. Time and memory are linear in what
    the file holds when it is uncompressed, and a signal ends the reading.

    >>> plimsoll.read_recording("run.pickle").devices[0].load()  # doctest: +SKIP

    Args:
        path: Of the file.
        needs_history: Whether a snapshot without a history is refused; see `read_snapshot`.
        memory: What the file's contents, uncompressed, and the values in them may take, such as
            "8GiB" or in bytes; by default 1 GiB, or eight times the file's size if that is more.
            Reading takes at most about twice as much.
        goes_by: Whether the events of a trace are gone through and never held all together; then
            they may by default be 256 times the file.

    Raises:
        InputError: If there is no such file, or it holds no history; the message says which.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.peek(4)[:4]
            size = os.fstat(file.fileno()).st_size
            is_trace = magic in (_PARQUET, _ARROW_STREAM)
            most = reading_memory(size, memory, goes_by=goes_by and is_trace)
            if not magic:
                raise InputError(f"{path}: the file is empty")
            if magic == _PARQUET:
                from plimsoll.recordings.parquet import read_parquet

                return read_parquet(path, most)
            if magic == _ARROW_STREAM:
                from plimsoll.recordings.stream_reader import read_stream

                return read_stream(path, most)
            if magic[:2] == _GZIP:
                with gzip.open(file) as packed:
                    content = _read_all(packed.read, most)
            else:
                content = _read_all(file.read, most)
        return read_snapshot(content, str(path), needs_history=needs_history, memory=most)
    except _core.ReadingLimitError:
        raise too_large(path, most) from None
    except MemoryError:
        raise InputError(f"{path}: there is not enough memory to read it") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, not a snapshot") from None
    except EOFError:
        raise InputError(f"{path}: the gzip file is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the gzip file is damaged: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def is_recording(path: str | PathLike[str]) -> bool:
    """Whether a file's name ends as a recording's, or it begins as no script in Python can."""
    if is_recording_name(path):
        return True
    try:
        with Path(path).open("rb") as file:
            return file.read(4).startswith((_GZIP, _PARQUET, _ARROW_STREAM, _BINARY_PICKLE))
    except OSError:  # whoever opens it next says why
        return False


def _read_all(read: Callable[[int], bytes], most: int) -> bytearray:
    """Part by part: what a file unpacks to is not known, and nobody takes the ceiling for it."""
    content = bytearray()
    while part := read(_PART):
        if len(content) + len(part) > most:
            raise _core.ReadingLimitError
        content += part
    return content


def read_snapshot(
    content: bytes | bytearray,
    name: str = "snapshot",
    *,
    needs_history: bool = True,
    memory: int | str | None = None,
) -> Recording:
    """Read the pickle that `torch.cuda.memory._dump_snapshot` writes, from memory.

    Args:
        content: The pickle.
        name: What to call it in messages.
        needs_history: Whether one without a history is refused. Else it is read as one in which
            nothing happens but the snapshot itself.
        memory: The most memory that reading may take, as for `read_recording`.

    Raises:
        InputError: If it is not one, or it holds nothing, or reading takes too much memory.
    """
    most = reading_memory(len(content), memory)
    try:
        if len(content) > most:
            raise _core.ReadingLimitError
        file = _core.SnapshotFile(content, most - len(content))
        devices = [_trace(file, device) for device in range(file.device_count)]
        settings = check_settings({} if file.settings is None else file.settings)
    except _core.ReadingLimitError:
        raise too_large(name, most) from None
    except MemoryError:
        raise InputError(f"{name}: there is not enough memory to read it") from None
    except _core.PickleError as error:
        reason = f": {error}" if content[:1] in _PICKLES else ""
        raise InputError(
            f"{name}: not a readable pickle{reason}; what can be read are {READABLE}"
        ) from None
    except (_core.RecordingError, DamageError) as error:
        raise InputError(f"{name}: {error}") from None
    if not needs_history and not any(trace.event_count for trace in devices):
        devices = [
            LoadedTrace(trace.device, _one_snapshot(), trace.segments, file)
            for trace in devices
            if trace.segments
        ]
    devices = [trace for trace in devices if trace.event_count > 0]
    if not devices:
        raise InputError(
            f"{name}: the history is empty: was torch.cuda.memory._record_memory_history() "
            "called before the run, with enabled='all'?"
        )
    if not file.has_host_memory:  # which all have from 2.14 on
        settings.setdefault("torch_version", "2.13" if file.names_pools else "2.11")
    try:
        ends = {trace.device: trace.event_count for trace in devices}
        labels = list(_labels(settings.pop("labels", {}), ends))
    except DAMAGE:
        raise InputError(f"{name}: what it says of tensors cannot be read") from None
    return Recording(name=name, devices=list(devices), settings=settings, labels=labels)


def _labels(found: Any, ends: dict[int, int]) -> Iterator[Label]:
    """Reads the labels in the settings of a snapshot; they are of its end."""
    for category, by_device in found.items():
        for device, addresses in by_device.items():
            for address in addresses:
                yield check_label(ends.get(int(device), 0), address, category, device)


def _trace(file: _core.SnapshotFile, device: int) -> LoadedTrace:
    columns = {column: file.column(device, column) for column in COLUMNS}
    events = check_events(EventBatch.of(columns))
    return LoadedTrace(device, events, check_segments(file.segments(device)), file)


def _one_snapshot() -> EventBatch:
    columns = {name: np.zeros(1, dtype=dtype) for name, dtype in COLUMNS.items()}
    columns["action"][:] = Action.SNAPSHOT
    return EventBatch.of(columns)
