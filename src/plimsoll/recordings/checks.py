"""Checks recordings from any file, and bounds the cost of reading them.

An untrusted file may contain anything. Values that pass these checks are safe for the code that
uses a recording.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.units import GiB, format_size, parse_size
from plimsoll.recordings.earlier import Earlier
from plimsoll.recordings.events import ACTIONS, COLUMNS, Action, EventBatch, Frame
from plimsoll.recordings.label import Label

MOST_DEVICES = 120
"""The most devices that PyTorch supports (C10_COMPILE_TIME_MAX_GPUS)."""

_MOST_SIZE = 1 << 48  # bytes: more than a processor can address
_MOST_RESERVED = 1 << 42  # bytes reserved on a device: more than any card and its host have
_MOST_ADDRESS = 1 << 62
_MOST_TIME = 1 << 53  # microseconds: the year 2255
_MOST_LINE = (1 << 31) - 1
_LONGEST_NAME = 512
_LONGEST_CONF = 4096
_EVENT_BYTES = sum(np.dtype(dtype).itemsize for dtype in COLUMNS.values())
_LEAST_MEMORY = 1 * GiB
# An uncompressed PyTorch snapshot takes about 6 bytes of memory to read for each byte of the file.
# The limit of 8 leaves a margin.
_MEMORY_PER_BYTE = 8
# This factor is for callers that keep only one batch at a time. It is large because steps that
# resemble each other can be compressed to a thirtieth of their size.
_GOING_BY_PER_BYTE = 256
_ALLOCATORS = tuple(_core.allocator_names())


DAMAGE = (
    pa.ArrowException, OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
    RecursionError,
)  # fmt: skip
"""The errors that Arrow and JSON raise for untrusted bytes."""


class DamageError(ValueError):
    """Part of a file has impossible values; the message describes them."""


def reading_memory(file_bytes: int, memory: int | str | None, *, goes_by: bool = False) -> int:
    """Returns the most bytes that reading a file may take.

    Args:
        file_bytes: The file's size on disk.
        memory: The caller's limit; by default 1 GiB, or eight times the file if that is more.
        goes_by: Whether the caller reads the file in batches and keeps none of them. The default
            then allows 256 times the file instead of eight times. Large contents cost such a caller
            time, not memory.
    """
    if memory is not None:
        return parse_size(memory)
    return max(_LEAST_MEMORY, (_GOING_BY_PER_BYTE if goes_by else _MEMORY_PER_BYTE) * file_bytes)


def too_large(name: object, memory: int) -> InputError:
    """Makes the error for a file that takes more memory to read than the limit."""
    return InputError(
        f"{name}: reading takes more than {format_size(memory)} of memory; --read-memory "
        f"{format_size(2 * memory).replace('.00', '').replace(' ', '')} (from Python: "
        "read_recording(..., memory=...)) allows more"
    )


def check_count(events: int, memory: int) -> None:
    """Checks that this many events fit into the given memory.

    Raises:
        ReadingLimitError: If they do not.
    """
    if events * _EVENT_BYTES > memory:
        raise _core.ReadingLimitError


def check_events(batch: EventBatch) -> EventBatch:
    """Returns the batch if all its events are possible.

    Raises:
        DamageError: If an event has an impossible value.
    """
    if len(batch) == 0:
        return batch
    if int(batch.action.max()) >= len(ACTIONS):
        raise DamageError("an event has an unknown action")
    if int(batch.time_us.min()) < 0 or int(batch.time_us.max()) > _MOST_TIME:
        raise DamageError("an event has an impossible time")
    is_refused = batch.action == Action.OOM  # a failed request may have any size
    if int(batch.size.max(initial=0, where=~is_refused)) > _MOST_SIZE:
        raise DamageError("an event has an impossible size")
    if int(batch.size.max()) > _MOST_ADDRESS or int(batch.address.max()) > _MOST_ADDRESS:
        raise DamageError("an event has an impossible address or size")
    if (batch.shared > batch.size).any():
        raise DamageError("an event has more in shared memory than its size")
    return batch


def check_segments(segments: list[_core.SegmentInfo]) -> list[_core.SegmentInfo]:
    """Returns the segments of a device, sorted by address, if they are possible.

    Raises:
        DamageError: If segments overlap, are too large, or are not filled by their blocks.
    """
    segments = sorted(segments, key=lambda segment: segment.address)
    for segment in segments:
        if segment.total_size > _MOST_SIZE or segment.address > _MOST_ADDRESS:
            raise DamageError("a segment has an impossible address or size")
        address = segment.address
        for block in segment.blocks:
            if block.address != address or max(block.size, block.requested) > _MOST_SIZE:
                raise DamageError("a segment has blocks that cannot be")
            address += block.size
        if address != segment.address + segment.total_size:
            raise DamageError("a segment has blocks that do not add up to its size")
    if any(a.address + a.total_size > b.address for a, b in pairwise(segments)):
        raise DamageError("segments overlap")
    if sum(segment.total_size for segment in segments) > _MOST_RESERVED:
        raise DamageError("segments are larger than any device")
    return segments


def check_frame(file: object, line: object, name: object) -> Frame:
    """Makes a frame from untrusted values.

    Raises:
        TypeError, ValueError or OverflowError: If `line` is no number.
    """
    number = int(line)  # type: ignore[call-overload]
    return (
        str(file)[:_LONGEST_NAME],
        number if 0 <= number <= _MOST_LINE else 0,
        str(name)[:_LONGEST_NAME],
    )


def check_settings(settings: Any) -> dict[str, Any]:
    """Returns a copy of a recording's settings if they are possible.

    Raises:
        DamageError, AttributeError, TypeError or ValueError: If the settings are not a dictionary,
            or one of them is impossible, such as an unknown allocator.
    """
    if not isinstance(settings, dict):
        raise DamageError("the settings are not a dictionary")
    if (settings.get("allocator") or "native") not in _ALLOCATORS:
        raise DamageError("the recorded allocator is unknown")
    for key in ("PYTORCH_CUDA_ALLOC_CONF", "last_allocator_settings", "torch_version"):
        text = str(settings.get(key, ""))
        if len(text) > _LONGEST_CONF or not text.isprintable():
            raise DamageError(f"the recorded {key} is no text that it can be")
    if "process" in settings:
        ProcessPlace.from_dict(settings["process"])
    if "earlier" in settings:
        Earlier.from_dict(settings["earlier"])
    found: dict[str, Any] = dict(settings)
    if "limits" in found:
        found["limits"] = {
            device: [check_limit(limit) for limit in limits]
            for device, limits in found["limits"].items()
        }
    return found


def check_limits(limits: Any) -> dict[str, int | None]:
    """Returns a copy of the limits of devices if they are possible.

    Raises:
        DamageError or AttributeError: If they are not.
    """
    return {str(device): check_limit(limit) for device, limit in limits.items()}


def check_limit(limit: object) -> int | None:
    """Returns the most bytes that a process may reserve; None for no limit.

    Raises:
        DamageError: If this is no number of bytes.
    """
    if limit is None or (type(limit) is int and 0 <= limit < _MOST_SIZE):
        return limit
    raise DamageError("a limit on memory is no number of bytes")


def check_moment(time_us: object, name: object) -> tuple[int, str]:
    """Returns a mark's time, in microseconds since the epoch, and its name.

    Raises:
        DamageError, TypeError, ValueError or OverflowError: If the values are invalid.
    """
    time = int(time_us)  # type: ignore[call-overload]
    if not 0 <= time <= _MOST_TIME:
        raise DamageError("a mark has an impossible time")
    return time, str(name)[:_LONGEST_NAME]


def check_label(event: object, address: object, category: object, device: object) -> Label:
    """Makes a label from untrusted values.

    Raises:
        DamageError, TypeError, ValueError or OverflowError: If the values are invalid.
    """
    count, place, number = (int(one) for one in (event, address, device))  # type: ignore[call-overload]
    if count < 0 or not 0 <= place < 1 << 64 or not 0 <= number < MOST_DEVICES:
        raise DamageError("a label has an impossible place")
    return Label(count, place, str(category)[:_LONGEST_NAME], number)
