"""Describes streaming traces (`.plim`): a history that is written while it happens.

A trace is an Arrow IPC stream: one schema, followed by batches of events in order of arrival. The
columns are `device` and then those of `EventBatch`, so any reader of Arrow can read them.
All other data is JSON in the metadata of each batch, under the key `plimsoll`; each entry may be
missing:

    frames   [[file, line, function], ...]: new frames, numbered from 0
    stacks   {number: [frame, ...]}: new call stacks, innermost frame first
    marks    [[row, time, name], ...]: named moments, after `row` rows of the batch
    labels   {category: [[row, device, address], ...]}: labels of addresses
    start    {device: [segment, ...]}: the segments before the first event
    end      {device: [segment, ...]}: the segments after the last event
    dropped  the number of events lost so far
    process  {rank, local_rank, world_size, host, job}: the process's place, once known
    limits   {device: bytes or null}: the most that the process may reserve, where it has changed
    ended    true: the recording was ended properly

The schema's metadata has the format's number and the allocator's settings. It also has the
process's place in its job, if this is known when the recording begins. "earlier" among the settings
says how much of the recording is older than this file (see `earlier.Earlier`). "limits" among them
has the limits at the beginning, {device: [bytes or null]}; a reader appends those of the batches. A
batch can be read without the batches that follow it, so a truncated or growing file is readable up
to its last whole batch.

The metadata of each batch also has a checksum as decimal digits, under the key `plimsoll.crc`. It
is zlib's CRC-32 of the JSON's bytes and the bytes of all columns. Each batch's checksum continues
the checksum of the previous batch. The first batch's checksum continues the checksum of the
schema's JSON. So reading ends at a batch that was changed or moved.
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
"""The most rows of a batch."""


def checksum_of(
    checksum: int, text: bytes, devices: NDArray[np.int32], columns: Iterable[NDArray[Any]]
) -> int:
    """Returns the checksum of a batch.

    Args:
        checksum: The checksum of the previous batch, or of the schema's JSON.
        text: The batch's other data, as JSON.
        devices: The devices of the batch's events.
        columns: The columns of the batch's events, in the order of the schema.
    """
    checksum = zlib.crc32(text, checksum)
    for column in (devices, *columns):
        checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
    return checksum
