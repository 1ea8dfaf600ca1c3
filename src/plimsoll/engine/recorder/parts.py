"""The parts of a recording that has a limit; the two newest parts are kept.

The newest part of `run.plim` is `run.plim` itself; the part before it is `run.earlier.plim`. Each
part begins with a picture of memory: the segments, and the call stack and the label of each live
block. So a part can be read without the parts before it. The recorder makes the file of a part with
the part's first events. Until then, `run.plim` is the part before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB, format_size, parse_size
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from plimsoll.engine.recorder.event_source import Segments
    from plimsoll.recordings.earlier import Earlier
    from plimsoll.recordings.events import EventBatch
    from plimsoll.recordings.stream_writer import StreamWriter

_LEAST_LIMIT = 16 * MiB


def parse_limit(limit: int | str) -> int:
    """Converts the limit of a recording's files to bytes.

    Raises:
        InputError: If it is not a size, or below 16 MiB.
    """
    size = parse_size(limit)
    if size < _LEAST_LIMIT:
        raise InputError(
            f"a recording's limit is at least {format_size(_LEAST_LIMIT)}, and not "
            f"{format_size(size)}"
        )
    return size


def earlier_path(path: Path) -> Path:
    """Returns the file of the part before the newest: `run.earlier.plim` for `run.plim`."""
    return path.with_stem(f"{path.stem}.earlier")


def is_full(writer: StreamWriter, limit: int) -> bool:
    """Returns whether the file of a part is full.

    A part may take half of the limit, or four times the size of its first write if that is more.
    The first write has a picture of memory, and most of the part should be events. The file must
    still have room for two writes: the next one, and the picture that ends the part. Each of these
    two is assumed to be as large as the largest write so far.
    """
    room = max(limit // 2, 4 * writer.first_bytes)
    return writer.size_bytes + 2 * writer.largest_bytes > room


@dataclass(frozen=True)
class Beginning:
    """The first contents of a new part.

    Attributes:
        earlier: The facts about the events before the part.
        segments: The segments of each device.
        labels: The labels of live blocks, each as (row, device, address, category). The row is 0.
    """

    earlier: Earlier
    segments: Segments
    labels: list[tuple[int, int, int, str]]


class LiveBlocks:
    """The call stack and the label of each live block, by device and address.

    The segments that PyTorch reports contain no call stacks and no labels.
    """

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, int], int] = {}
        self._labels: dict[tuple[int, int], int] = {}

    def follow(self, devices: NDArray[np.int32], events: EventBatch) -> None:
        """Takes further rows of the buffer into account: events and labels, in order."""
        rows = np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED, _core.EVENT_LABEL))
        columns = (devices, events.address, events.action, events.stack)
        for device, address, action, stack in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            block = device, address
            if action == _core.EVENT_LABEL:
                self._labels[block] = stack
                continue
            self._labels.pop(block, None)
            if action == Action.ALLOC:
                self._stacks[block] = stack
            else:
                self._stacks.pop(block, None)

    def picture(self, segments: Segments) -> tuple[Segments, list[tuple[int, int, int]], int]:
        """Returns the segments with call stacks, and the labels of live blocks.

        Forgets all blocks that are not live in `segments`.

        Returns:
            First, the segments with the call stack of each block. Second, for each label: the
            device and the address of its block, and the label's number. Third, the number of blocks
            that are live only in `segments`, or only by the events. Such a block changed while the
            segments were read.
        """
        live = {
            (device, block.address)
            for device, of in segments.items()
            for segment in of
            for block in segment.blocks
            if block.state != "inactive"
        }
        uncertain = len(live ^ self._stacks.keys())
        self._stacks = {block: self._stacks.get(block, 0) for block in live}
        self._labels = {block: name for block, name in self._labels.items() if block in live}
        told = {
            device: [self._told(device, each) for each in of] for device, of in segments.items()
        }
        return told, [(*block, name) for block, name in self._labels.items()], uncertain

    def _told(self, device: int, segment: _core.SegmentInfo) -> _core.SegmentInfo:
        blocks = [
            _core.BlockInfo(
                block.address, block.size, block.requested, block.state,
                block.context or self._stacks.get((device, block.address), 0),
            )
            for block in segment.blocks
        ]  # fmt: skip
        return _core.SegmentInfo(
            segment.address, segment.total_size, segment.stream, segment.pool, segment.small,
            segment.expandable, segment.context, blocks,
        )  # fmt: skip
