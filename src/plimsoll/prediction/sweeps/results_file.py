"""The table of a sweep in Parquet. It stays readable even if the writing process is killed."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from plimsoll.base.endings import check_ending
from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile, check_can_be_made
from plimsoll.prediction.sweeps.parts import Case, Row

if TYPE_CHECKING:
    import os

_MARK = b"plimsoll.sweep"
_CASE = pa.schema(
    [
        ("kind", pa.string()),
        ("program", pa.string()),
        ("arguments", pa.list_(pa.string())),
        ("gpu", pa.string()),
        ("conf", pa.string()),
        ("allocator", pa.string()),
        ("nproc_per_node", pa.int64()),
        ("nnodes", pa.int64()),
    ]
)
_ADDED = ("nproc_per_node", "nnodes", "may_not_fit")
"""Columns that tables of earlier versions lack. For rows of such tables they are None or False."""
_SCHEMA = pa.schema(
    [
        *_CASE,
        ("key", pa.string()),
        ("error", pa.string()),
        ("fits", pa.bool_()),
        ("peak_allocated_bytes", pa.int64()),
        ("peak_reserved_bytes", pa.int64()),
        ("device_used_bytes", pa.int64()),
        ("total_bytes", pa.int64()),
        ("step_seconds", pa.float64()),
        ("samples_per_second", pa.float64()),
        ("result", pa.string()),
        ("may_not_fit", pa.bool_()),
    ],
    metadata={_MARK: b"1"},
)


_REST = 20
"""The pause after a write is at least this many times as long as the write.

The last write, at the end of the `with` block, needs no pause.
"""


class ResultsFile:
    """A file that keeps the rows of a sweep. Use it in a `with` block.

    At the block's end all rows are in the file.

    Each write replaces the whole file. So if writes are slow, plimsoll collects several rows for
    one write.

    Args:
        path: The file, which may exist.

    Raises:
        InputError: If the file is not a table of a sweep, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_ending(self.path, ".parquet", what="a table of results")
        self._rows: dict[str, dict[str, Any]] = {}  # from a row's key to its columns
        if self.path.exists():
            self._rows = {str(row["key"]): row for row in _read(self.path)}
        check_can_be_made(self.path, force=True)
        self._lock = threading.Lock()
        self._later: threading.Timer | None = None
        self._next = 0.0  # the earliest time of the next write, on the monotonic clock
        self._error: InputError | None = None

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._later is not None:
                self._later.cancel()
                self._write()

    def done(self, key: str) -> Row | None:
        """Returns the row kept under this key; None if there is none, or if its case failed."""
        row = self._rows.get(key)
        return None if row is None or row["error"] is not None else _row(row)

    def keep(self, row: Row) -> None:
        """Keeps a row, and writes it to the file immediately, or later if a write was just made.

        Raises:
            InputError: If this row or an earlier one cannot be written.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            self._rows[row.key] = _flat(row)
            if self._later is not None:
                return
            wait = self._next - time.monotonic()
            if wait <= 0:
                self._write()
            else:
                self._later = threading.Timer(wait, self._write_waiting)
                self._later.daemon = True
                self._later.start()

    def _write_waiting(self) -> None:
        with self._lock:
            try:
                if self._later is not None:
                    self._write()
            except InputError as error:
                self._error = error

    def _write(self) -> None:
        began = time.monotonic()
        table = pa.Table.from_pylist([*self._rows.values()], _SCHEMA)
        with NewFile(self.path, force=True) as file:
            pq.write_table(table, file, compression="zstd")
        self._later = None
        self._next = time.monotonic() + _REST * (time.monotonic() - began)


def is_sound(row: Row) -> bool:
    """Returns whether the values of a row have the types of the table's columns.

    A Ray worker may run another version of plimsoll than this process and send other types.
    """
    try:
        pa.Table.from_pylist([_flat(row)], _SCHEMA)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError):
        return False
    return True


def _flat(row: Row) -> dict[str, Any]:
    return {**row.to_dict(), "result": json.dumps(row.result)}


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        # The file is opened only once, here: read_table would open the path twice, and another
        # process may replace the file in between.
        with path.open("rb") as file:
            table = pq.read_table(file)
        names = table.schema.names
        lacks = [name for name in _ADDED if name not in names]
        wanted = [name for name in _SCHEMA.names if name not in lacks]
        if _MARK not in (table.schema.metadata or {}) or names != wanted:
            raise InputError(f"{path}: is no table of a sweep, and is not overwritten")
        for name in lacks:
            nulls = pa.nulls(table.num_rows, _SCHEMA.field(name).type)
            table = table.add_column(_SCHEMA.get_field_index(name), name, nulls)
        rows: list[dict[str, Any]] = table.cast(_SCHEMA).to_pylist()
        for row in rows:
            _row(row)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is no table of a sweep: {error}") from None
    return rows


def _row(flat: dict[str, Any]) -> Row:
    values = {**flat, "arguments": tuple(flat["arguments"]), "result": json.loads(flat["result"])}
    case = {name: values.pop(name) for name in _CASE.names}
    values["may_not_fit"] = bool(values["may_not_fit"])
    return Row(Case(**case), **values)
