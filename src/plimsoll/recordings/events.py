"""Holds events as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ACTIONS = tuple(_core.action_names())
"""The names of the actions in PyTorch's snapshots; the index is the code."""


class Action(IntEnum):
    """The kind of an event; the value is the code in the `action` column."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


Frame = tuple[str, int, str]
"""The file name, line and function of one level of a call stack."""

COLUMNS: dict[str, type[np.generic]] = {
    "action": np.uint8,
    "address": np.uint64,
    "size": np.uint64,
    "stream": np.uint64,
    "time_us": np.int64,
    "pool_first": np.uint64,
    "pool_second": np.uint64,
    "stack": np.uint32,
    "shared": np.uint64,
}
"""The columns of a batch and their types."""

_OFTEN_MISSING = ("stack", "shared")


@dataclass(frozen=True)
class EventBatch:
    """Events in order, as columns of length n.

    Attributes:
        action: Codes of `Action`, uint8.
        address: Device addresses; for an `oom`, the bytes that were free on the device. uint64.
        size: Bytes. For `alloc` and frees, the requested size; for an `oom`, the size after
            rounding. uint64.
        stream: Stream handles; 0 is the default stream. uint64.
        time_us: Microseconds since the epoch. int64.
        pool_first: First half of the private pool's id; both halves are 0 for the default pool.
        pool_second: Second half of the private pool's id.
        stack: Numbers of call stacks, which `DeviceTrace.frames` resolves; 0 for none. uint32.
        shared: The part of `size` that lies in host memory; 0 in PyTorch's own events. uint64.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    time_us: NDArray[np.int64]
    pool_first: NDArray[np.uint64]
    pool_second: NDArray[np.uint64]
    stack: NDArray[np.uint32]
    shared: NDArray[np.uint64]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> EventBatch:
        """Makes a batch from columns by name, and converts them to the right types.

        The columns `stack` and `shared` may be missing; their values are then 0.
        """
        missing = {
            name: np.zeros(len(columns["action"]), dtype=COLUMNS[name])
            for name in _OFTEN_MISSING
            if name not in columns
        }
        return cls(
            **{
                name: np.ascontiguousarray(missing.get(name, columns.get(name)), dtype=dtype)
                for name, dtype in COLUMNS.items()
            }
        )

    @classmethod
    def join(cls, batches: Iterable[EventBatch]) -> EventBatch:
        """Joins consecutive batches."""
        parts = [{name: getattr(batch, name) for name in COLUMNS} for batch in batches]
        if len(parts) == 1:
            return cls(**parts[0])
        # Each joined column is dropped from the parts, so that not everything is in memory twice.
        return cls(
            **{
                name: np.concatenate([np.empty(0, dtype), *(part.pop(name) for part in parts)])
                for name, dtype in COLUMNS.items()
            }
        )

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, part: slice | NDArray[np.bool_] | NDArray[np.int64]) -> EventBatch:
        return EventBatch(**{name: getattr(self, name)[part] for name in COLUMNS})

    def to_core(self) -> _core.Columns:
        """Returns the same columns for the C++ engine, without a copy."""
        return _core.Columns(
            self.action, self.address, self.size, self.stream, self.pool_first, self.pool_second
        )
