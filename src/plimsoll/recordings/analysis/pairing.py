"""Pairs allocations with their frees.

Events name blocks by address, and addresses are reused. If the events are sorted by address and
then by number, each allocation is followed by the request and the completion of its own free. So
one sort pairs all events.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.events import EventBatch


@dataclass(frozen=True)
class Rows:
    """Events of blocks, as columns.

    Attributes:
        event: The events' numbers in the history. int64.
        action: Codes of `Action`. uint8.
        address: The addresses of the blocks. uint64.
        rank: The number of allocations in the history before each event. int64.
    """

    event: NDArray[np.int64]
    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    rank: NDArray[np.int64]

    @classmethod
    def of(cls, events: EventBatch, first: int, requests: int) -> Rows:
        """Takes the events of blocks from a batch.

        Args:
            events: The batch.
            first: The number of the batch's first event in the history.
            requests: The number of allocations in the history before the batch.
        """
        rows = np.flatnonzero(events.action <= Action.FREE_COMPLETED)
        action = events.action[rows]
        is_request = action == Action.ALLOC
        rank = requests + np.cumsum(is_request, dtype=np.int64) - is_request
        return cls(rows + first, action, events.address[rows], rank)

    @classmethod
    def none(cls) -> Rows:
        """Makes a table without rows."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none.astype(np.uint8), none.astype(np.uint64), none)

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Returns one table with the rows of all `parts`, in this order."""
        return cls(
            *(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls))
        )

    def __getitem__(self, part: NDArray[np.bool_]) -> Rows:
        return Rows(self.event[part], self.action[part], self.address[part], self.rank[part])


@dataclass(frozen=True)
class Pairs:
    """Blocks, in the order of their first events, as columns.

    Attributes:
        opening: The block's earliest event: its allocation, or its free if the allocation is
            missing. int64.
        is_known: Whether `opening` is the allocation.
        end: The event that requested the block's free. It is -1 if that request came before the
            history began. It is the number of events in the history if there is no request. int64.
        end_rank: The number of allocations before `end`. int64.
        completed: The event that completed the free; the number of events in the whole history if
            there is none. int64.
        address: Addresses. uint64.
    """

    opening: NDArray[np.int64]
    is_known: NDArray[np.bool_]
    end: NDArray[np.int64]
    end_rank: NDArray[np.int64]
    completed: NDArray[np.int64]
    address: NDArray[np.uint64]

    @classmethod
    def join(cls, parts: Sequence[Pairs]) -> Pairs:
        """Returns one table with the rows of all `parts`, in this order."""
        return cls(
            *(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls))
        )

    def __len__(self) -> int:
        return len(self.opening)

    def __getitem__(self, part: NDArray[np.bool_] | NDArray[np.int64]) -> Pairs:
        return Pairs(*(getattr(self, one.name)[part] for one in fields(self)))


@dataclass(frozen=True)
class Paired:
    """The result of pairing rows.

    Attributes:
        pairs: The blocks, each from the row that allocates it to the row that frees it.
        block: For each row, the number of its block in `pairs`.
        is_last: Whether each block is the last one at its address.
    """

    pairs: Pairs
    block: NDArray[np.int64]
    is_last: NDArray[np.bool_]


def pair(rows: Rows, event_count: int) -> Paired:
    """Pairs the allocations and frees of each address.

    Args:
        rows: The rows; those of one address must be in the order of events.
        event_count: The number of events in the whole history.
    """
    # A stable sort keeps the order of events within an address.
    order = np.argsort(rows.address, kind="stable")
    address, action = rows.address[order], rows.action[order]
    opens = action == Action.ALLOC
    opens[:1] = True
    opens[1:] |= address[1:] != address[:-1]
    block = np.cumsum(opens) - 1
    opening = order[opens]
    is_last = np.ones(len(opening), dtype=bool)
    is_last[:-1] = address[opens][1:] != address[opens][:-1]

    def first_of(kind: Action) -> NDArray[np.int64]:
        """Returns each block's first row with action `kind`, or the number of all rows."""
        found = np.full(len(opening), len(order), dtype=np.int64)
        places = np.flatnonzero(action == kind)[::-1]
        found[block[places]] = order[places]  # the first row is written last and stays
        return found

    event = np.append(rows.event, event_count)
    rank = np.append(rows.rank, 0)
    asked, done = first_of(Action.FREE_REQUESTED), first_of(Action.FREE_COMPLETED)
    # The history may contain only the completion of a free. The request then came before the first
    # event, or is missing.
    unasked = event[done] < event[asked]
    asked[unasked] = done[unasked]
    is_known = rows.action[opening] == Action.ALLOC
    pairs = Pairs(
        opening=rows.event[opening],
        is_known=is_known,
        end=np.where(unasked & ~is_known, -1, event[asked]),
        end_rank=rank[asked],
        completed=event[done],
        address=rows.address[opening],
    )
    by_event = np.argsort(pairs.opening)
    number = np.empty_like(by_event)
    number[by_event] = np.arange(len(by_event))
    of_row = np.empty_like(order)
    of_row[order] = number[block]
    return Paired(pairs[by_event], of_row, is_last[by_event])
