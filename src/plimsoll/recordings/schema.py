"""Defines the columns of events in files: `device`, then those of `EventBatch`."""

from __future__ import annotations

import pyarrow as pa

from plimsoll.recordings.events import COLUMNS

EVENT_SCHEMA = pa.schema(
    [
        ("device", pa.int32()),
        *((name, pa.from_numpy_dtype(dtype)) for name, dtype in COLUMNS.items()),
    ]
)
