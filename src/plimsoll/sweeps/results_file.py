"""The table of a sweep in Parquet: whole at any time, whatever ends who writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from plimsoll.errors import InputError
from plimsoll.files import NewFile, check_can_be_made, check_ending
from plimsoll.sweeps.parts import Case, Row

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

_MARK = b"plimsoll.sweep"
_CASE = pa.schema(
    [
        ("kind", pa.string()),
        ("program", pa.string()),
        ("arguments", pa.list_(pa.string())),
        ("gpu", pa.string()),
        ("conf", pa.string()),
        ("allocator", pa.string()),
    ]
)
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
    ],
    metadata={_MARK: b"1"},
)


class ResultsFile:
    """Where rows are kept.

    Args:
        path: The file, which may be there already.

    Raises:
        InputError: If it is no such table, or none can be made there.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        check_ending(self.path, ".parquet", what="a table of results")
        self._rows: dict[str, Row] = {}
        if self.path.exists():
            self._rows = {row.key: row for row in _read(self.path)}
        check_can_be_made(self.path, force=True)

    def done(self, key: str) -> Row | None:
        """What is kept of a case that did not fail."""
        row = self._rows.get(key)
        return None if row is None or row.error is not None else row

    def keep(self, row: Row) -> None:
        """Keep a row: from now on it is in the file.

        Raises:
            InputError: If it cannot be written.
        """
        self._rows[row.key] = row
        table = pa.Table.from_pylist([_flat(one) for one in self._rows.values()], _SCHEMA)
        with NewFile(self.path, force=True) as file:
            pq.write_table(table, file, compression="zstd")


def _flat(row: Row) -> dict[str, Any]:
    return {**row.to_dict(), "result": json.dumps(row.result)}


def _read(path: Path) -> Iterable[Row]:
    try:
        table = pq.read_table(path, memory_map=False)
        if _MARK not in (table.schema.metadata or {}) or table.schema.names != _SCHEMA.names:
            raise InputError(f"{path}: is no table of a sweep, and is not overwritten")
        rows = table.to_pylist()
        return [_row(values) for values in rows]
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is no table of a sweep: {error}") from None


def _row(values: dict[str, Any]) -> Row:
    case = {name: values.pop(name) for name in _CASE.names}
    result = json.loads(values.pop("result"))
    case["arguments"] = tuple(case["arguments"])
    return Row(Case(**case), **values, result=result)
