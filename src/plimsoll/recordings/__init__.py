"""Memory histories that PyTorch recorded: read them, keep them as columns, go through them.

A file is a snapshot as `torch.cuda.memory._dump_snapshot` writes it (`.pickle`, `.pickle.gz`), a
streaming trace that plimsoll records (`.plim`), or a columnar trace (`.parquet`).
"""

from plimsoll.recordings.events import ACTIONS, Action, EventBatch, Frame
from plimsoll.recordings.label import Label
from plimsoll.recordings.parquet import TraceWriter, write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import DeviceTrace, Mark, Recording
from plimsoll.recordings.stream_writer import StreamWriter

__all__ = [
    "ACTIONS",
    "Action",
    "DeviceTrace",
    "EventBatch",
    "Frame",
    "Label",
    "Mark",
    "Recording",
    "StreamWriter",
    "TraceWriter",
    "read_recording",
    "write_parquet",
]
