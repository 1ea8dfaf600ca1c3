"""Streaming traces (`.plim`): a history that is written while it happens.

An Arrow IPC stream: one schema, and batch after batch of events, as they came. The columns are
those of `EventBatch` with `device` before them, so that any reader of Arrow can go through them.
What is not an event is JSON in the metadata of the batch that it came with, under the key
`plimsoll`; each entry of it may be missing:

    frames   [[file, line, function], ...]: frames that are new; they are numbered from 0 on
    stacks   {number: [frame, ...]}: call stacks that are new, innermost frame first
    marks    [[row, time, name], ...]: named moments; `row` rows of the batch came before
    labels   {category: [[row, device, address], ...]}: facts that PyTorch knew of addresses
    start    {device: [segment, ...]}: what there was before the first event
    end      {device: [segment, ...]}: what there is after the last event
    dropped  how many events found no room so far
    process  {rank, local_rank, world_size, host, job}: where the process runs, once it is known
    ended    true: the recording ended in good order

The schema's metadata says the format's number and the allocator's settings, with the process's
place so far. So a file needs nothing
that comes after it: one that was cut, or is being written, opens up to its last whole batch.

Under the key `plimsoll.crc`, beside that JSON, is a checksum as decimal digits: the CRC-32 (that of
zlib) of the JSON's bytes and the bytes of all columns, continued from the checksum of the batch
before, and for the first batch from that of the schema's JSON. So a batch that was changed, or is
not in its place, is where the history ends.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

FORMAT = 2
KEY = b"plimsoll"
SUM_KEY = b"plimsoll.crc"
MOST_ROWS = 1 << 17
"""Of a batch."""


def checksum_of(
    checksum: int, text: bytes, devices: NDArray[np.int32], columns: Iterable[NDArray[Any]]
) -> int:
    """The checksum of a batch.

    Args:
        checksum: Of the batch before, or of the schema's JSON.
        text: What the batch says besides its events, as JSON.
        devices: Of its events.
        columns: Of its events, in the order of the schema.
    """
    checksum = zlib.crc32(text, checksum)
    for column in (devices, *columns):
        checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
    return checksum
