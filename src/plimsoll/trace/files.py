"""Reading recordings from files, safely.

A pickle can run code when it is loaded by Python's own reader, and snapshots travel between people;
so they are read by the engine's reader, which can build nothing but plain data.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.trace.events import COLUMNS, EventBatch
from plimsoll.trace.recording import LoadedTrace, Recording

if TYPE_CHECKING:
    from os import PathLike

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_ARROW_STREAM = b"\xff\xff\xff\xff"


def read_recording(path: str | PathLike[str]) -> Recording:
    """Read a snapshot (`.pickle`, `.pickle.gz`) or a trace (`.plim`, `.parquet`).

    The kind of file is told by its first bytes, not by its name.

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
    return read_snapshot(content, str(path))


def read_snapshot(content: bytes, name: str = "snapshot") -> Recording:
    """Read the pickle that `torch.cuda.memory._dump_snapshot` writes, from memory.

    Raises:
        InputError: If it is not one, or its history is empty.
    """
    try:
        file = _core.SnapshotFile(content)
    except _core.PickleError as error:
        raise InputError(f"{name}: not a readable pickle: {error}") from None
    except _core.RecordingError as error:
        raise InputError(f"{name}: {error}") from None
    devices = [
        LoadedTrace(
            device,
            EventBatch.of({column: file.column(device, column) for column in COLUMNS}),
            file.segments(device),
            file,
        )
        for device in range(file.device_count)
    ]
    devices = [trace for trace in devices if trace.event_count > 0]
    if not devices:
        raise InputError(
            f"{name}: the history is empty: was torch.cuda.memory._record_memory_history() "
            "called before the run, with enabled='all'?"
        )
    return Recording(
        name=name,
        devices=list(devices),
        settings=file.settings if isinstance(file.settings, dict) else {},
    )
