"""Memory histories that PyTorch recorded: read them, keep them as columns, go through them.

A file is a snapshot as `torch.cuda.memory._dump_snapshot` writes it (`.pickle`, `.pickle.gz`) or
a columnar trace (`.parquet`), which streams.
"""

from plimsoll.trace.events import ACTIONS, Action, EventBatch
from plimsoll.trace.files import read_recording
from plimsoll.trace.parquet import TraceWriter, write_parquet
from plimsoll.trace.recording import DeviceTrace, Recording

__all__ = [
    "ACTIONS",
    "Action",
    "DeviceTrace",
    "EventBatch",
    "Recording",
    "TraceWriter",
    "read_recording",
    "write_parquet",
]
