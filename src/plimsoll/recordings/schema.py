"""The columns of events in files: those of `EventBatch`, with the device before them."""

from __future__ import annotations

import pyarrow as pa

from plimsoll.recordings.events import COLUMNS

EVENT_SCHEMA = pa.schema(
    [
        ("device", pa.int32()),
        *((name, pa.from_numpy_dtype(dtype)) for name, dtype in COLUMNS.items()),
    ]
)
