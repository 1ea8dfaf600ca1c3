"""Converts segments to JSON and back, for the files of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Callable


def segment_to_json(
    segment: _core.SegmentInfo, stack: Callable[[int], int] = lambda context: context
) -> dict[str, Any]:
    """Returns a segment and its blocks as plain data; `stack` maps stack numbers to new ones."""
    return {
        "address": segment.address,
        "total_size": segment.total_size,
        "stream": segment.stream,
        "pool": [segment.pool.first, segment.pool.second],
        "small": segment.small,
        "expandable": segment.expandable,
        "context": stack(segment.context),
        "blocks": [
            [b.address, b.size, b.requested, b.state, stack(b.context)] for b in segment.blocks
        ],
    }


def segment_from_json(value: dict[str, Any]) -> _core.SegmentInfo:
    """Returns the segment from the result of `segment_to_json`.

    Raises:
        LookupError, TypeError or ValueError: If the data is invalid.
    """
    return _core.SegmentInfo(
        value["address"],
        value["total_size"],
        value["stream"],
        _core.PoolId(*value["pool"]),
        value["small"],
        value["expandable"],
        value.get("context", 0),
        [_core.BlockInfo(*block) for block in value["blocks"]],
    )
