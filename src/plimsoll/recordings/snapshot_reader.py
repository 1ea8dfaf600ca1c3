"""Reads PyTorch's snapshots, which are pickles, perhaps gzipped.

Python's `pickle` can run code from a file, and snapshots are untrusted. So the C++ core reads them;
it builds only plain data.
"""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll import _core
from plimsoll.base.endings import READABLE
from plimsoll.base.errors import InputError
from plimsoll.recordings import checks
from plimsoll.recordings.events import COLUMNS, Action, EventBatch
from plimsoll.recordings.recording import LoadedTrace, Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from plimsoll.recordings.label import Label

_PART = 1 << 20  # bytes per read
_GZIP = b"\x1f\x8b"
_PICKLES = (b"\x80", b"(", b"]", b"}", b"c")  # the possible first bytes of a pickle


def read(path: Path, memory: int, *, needs_history: bool = True) -> Recording:
    """Reads a file that `torch.cuda.memory._dump_snapshot` wrote, perhaps gzipped.

    Args:
        path: The path of the file.
        memory: The most bytes that reading may take.
        needs_history: As for `read_snapshot`.

    Raises:
        InputError: As for `read_snapshot`; or if the gzipped file is damaged.
        ReadingLimitError: If the content takes more than `memory`.
    """
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] == _GZIP:
                with gzip.open(file) as packed:
                    content = _read_all(packed.read, memory)
            else:
                content = _read_all(file.read, memory)
    except EOFError:
        raise InputError(f"{path}: the gzip file is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the gzip file is damaged: {error}") from None
    return read_snapshot(content, str(path), needs_history=needs_history, memory=memory)


def read_snapshot(
    content: bytes | bytearray,
    name: str = "snapshot",
    *,
    needs_history: bool = True,
    memory: int | str | None = None,
) -> Recording:
    """Reads the pickle of `torch.cuda.memory._dump_snapshot` from memory.

    Args:
        content: The pickle.
        name: The name for messages.
        needs_history: Whether a snapshot without a history is refused. If it is not refused, the
            recording's only event is the snapshot itself.
        memory: The most memory for reading, as for `read_recording`.

    Raises:
        InputError: If the content is not a snapshot, is empty, or needs too much memory.
    """
    most = checks.reading_memory(len(content), memory)
    try:
        if len(content) > most:
            raise _core.ReadingLimitError
        file = _core.SnapshotFile(content, most - len(content))
        devices = [_trace(file, device) for device in range(file.device_count)]
        found = {} if file.settings is None else file.settings
    except _core.ReadingLimitError:
        raise checks.too_large(name, most) from None
    except MemoryError:
        raise InputError(f"{name}: there is not enough memory to read it") from None
    except _core.PickleError as error:
        reason = f": {error}" if content[:1] in _PICKLES else ""
        raise InputError(
            f"{name}: not a readable pickle{reason}; what can be read are {READABLE}"
        ) from None
    except (_core.RecordingError, checks.DamageError) as error:
        raise InputError(f"{name}: {error}") from None
    try:
        settings = checks.check_settings(found)
    except checks.DamageError as error:
        raise InputError(f"{name}: {error}") from None
    except checks.DAMAGE:
        raise InputError(f"{name}: the allocator's settings cannot be read") from None
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
    if not file.has_host_memory:  # every PyTorch from 2.14 on writes host memory
        settings.setdefault("torch_version", "2.13" if file.names_pools else "2.11")
    try:
        ends = {trace.device: trace.event_count for trace in devices}
        labels = list(_labels(settings.pop("labels", {}), ends))
    except checks.DAMAGE:
        raise InputError(f"{name}: what it says of tensors cannot be read") from None
    return Recording(name=name, devices=list(devices), settings=settings, labels=labels)


def _labels(found: Any, ends: dict[int, int]) -> Iterator[Label]:
    """Yields the labels in a snapshot's settings. Each is placed after its device's last event."""
    for category, by_device in found.items():
        for device, addresses in by_device.items():
            for address in addresses:
                yield checks.check_label(ends.get(int(device), 0), address, category, device)


def _trace(file: _core.SnapshotFile, device: int) -> LoadedTrace:
    columns = {column: file.column(device, column) for column in COLUMNS}
    events = checks.check_events(EventBatch.of(columns))
    return LoadedTrace(device, events, checks.check_segments(file.segments(device)), file)


def _one_snapshot() -> EventBatch:
    columns = {name: np.zeros(1, dtype=dtype) for name, dtype in COLUMNS.items()}
    columns["action"][:] = Action.SNAPSHOT
    return EventBatch.of(columns)


def _read_all(read: Callable[[int], bytes], most: int) -> bytearray:
    """Reads the whole content in parts, because its size is unknown. Raises beyond `most` bytes."""
    content = bytearray()
    while part := read(_PART):
        if len(content) + len(part) > most:
            raise _core.ReadingLimitError
        content += part
    return content
