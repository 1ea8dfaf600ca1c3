"""Recognises memory held by unused streams, and by freed blocks that wait for a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.1
_MANY_STREAMS = 3


def idle_streams(facts: Facts) -> Cause | None:
    """Finds streams without live blocks that keep a tenth or more of reserved memory."""
    reserved = facts.reserved
    if reserved.idle_streams < _MANY_STREAMS:
        return None
    if reserved.idle_stream_bytes < _LEAST_SHARE * reserved.bytes:
        return None
    return Cause(
        name="idle_streams",
        sentence=f"{reserved.idle_streams} streams that are out of use keep "
        f"{format_size(reserved.idle_stream_bytes)}, which serves no other stream",
        change="make a stream once, and use it again in every epoch",
        bytes=reserved.idle_stream_bytes,
    )


def waiting_frees(facts: Facts) -> Cause | None:
    """Finds freed blocks that wait for another stream.

    They must be at least 10 % of reserved memory.
    """
    reserved = facts.reserved
    if not reserved.pending_bytes or reserved.pending_bytes < _LEAST_SHARE * reserved.bytes:
        return None
    return Cause(
        name="waiting_frees",
        sentence=f"record_stream keeps {format_size(reserved.pending_bytes)} that the program has "
        "freed, until another stream has finished",
        change="let the stream that made a tensor wait for its use, instead of record_stream",
        bytes=reserved.pending_bytes,
    )
