"""Reading recordings from files, safely.

A pickle can run code when it is loaded by Python's own reader, and snapshots travel between people;
so they are read by the engine's reader, which can build nothing but plain data.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.trace.events import COLUMNS, Action, EventBatch
from plimsoll.trace.recording import LoadedTrace, Recording

if TYPE_CHECKING:
    from os import PathLike

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_PICKLES = (b"\x80", b"(", b"]", b"}", b"c")  # how one can begin


def read_recording(path: str | PathLike[str], *, needs_history: bool = True) -> Recording:
    """Read a snapshot (`.pickle`, `.pickle.gz`) or a trace (`.plim`, `.parquet`).

    The kind of file is told by its first bytes, not by its name.

    Args:
        path: Of the file.
        needs_history: Whether a snapshot without a history is refused; see `read_snapshot`.

    Raises:
        InputError: If there is no such file, or it holds no history; the message says which.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.peek(4)[:4]
            if not magic:
                raise InputError(f"{path}: the file is empty")
            if magic == _PARQUET:
                from plimsoll.trace.parquet import read_parquet

                return read_parquet(path)
            if magic == _ARROW_STREAM:
                from plimsoll.trace.stream import read_stream

                return read_stream(path)
            if magic[:2] == _GZIP:
                with gzip.open(file) as packed:
                    content = packed.read()
            else:
                content = file.read()
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
    return read_snapshot(content, str(path), needs_history=needs_history)


def read_snapshot(
    content: bytes, name: str = "snapshot", *, needs_history: bool = True
) -> Recording:
    """Read the pickle that `torch.cuda.memory._dump_snapshot` writes, from memory.

    Args:
        content: The pickle.
        name: What to call it in messages.
        needs_history: Whether one without a history is refused. Else it is read as one in which
            nothing happens but the snapshot itself.

    Raises:
        InputError: If it is not one, or it holds nothing.
    """
    try:
        file = _core.SnapshotFile(content)
    except _core.PickleError as error:
        reason = f": {error}" if content[:1] in _PICKLES else ""
        raise InputError(
            f"{name}: not a readable pickle{reason}; what can be read are snapshots of PyTorch "
            "(.pickle, .pickle.gz) and traces of plimsoll (.plim, .parquet)"
        ) from None
    except _core.RecordingError as error:
        raise InputError(f"{name}: {error}") from None
    devices = [_trace(file, device) for device in range(file.device_count)]
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
    settings = dict(file.settings) if isinstance(file.settings, dict) else {}
    if not file.has_host_memory:  # which all have from 2.14 on
        settings.setdefault("torch_version", "2.13" if file.names_pools else "2.11")
    return Recording(name=name, devices=list(devices), settings=settings)


def _trace(file: _core.SnapshotFile, device: int) -> LoadedTrace:
    columns = {column: file.column(device, column) for column in COLUMNS}
    return LoadedTrace(device, EventBatch.of(columns), file.segments(device), file)


def _one_snapshot() -> EventBatch:
    columns = {name: np.zeros(1, dtype=dtype) for name, dtype in COLUMNS.items()}
    columns["action"][:] = Action.SNAPSHOT
    return EventBatch.of(columns)
