"""Recognises reserved memory that is free but does not fit requests, because sizes vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import MiB, format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.2
_LEAST_OUTGROWN = 0.5
_FEWEST_SIZES = 6
_LEAST_RATIO = 1.5
_LARGE = MiB
_CHANGE = "let segments grow (expandable_segments), or use plimsoll's allocator (`plimsoll run`)"


def varied_sizes(facts: Facts) -> Cause | None:
    """Finds a call with varying sizes, if a fifth of reserved memory or more was never in use.

    If half of reserved memory or more was never in use, also finds a call whose sizes only grow.
    The cause comes without advice if most of the card is unused.
    """
    reserved = facts.reserved
    if reserved.excess_bytes < _LEAST_SHARE * reserved.bytes or not len(facts.passes):
        return None
    calls = _calls(facts)
    sizes, line = _most_varied(facts, calls)
    how = "vary"
    if len(sizes) < _FEWEST_SIZES or sizes.max() < _LEAST_RATIO * sizes.min():
        sizes, line = _outgrown(facts, calls)
        how = "grow"
    if not len(sizes):
        return None
    is_needless = facts.has_ample_room
    return Cause(
        name="varied_sizes",
        sentence=f"{format_size(reserved.bytes)} is reserved, "
        f"{format_size(reserved.excess_bytes)} more than was in use at any time, because free "
        f"memory did not fit later requests: sizes at {subject(line)} {how}, "
        f"from {format_size(int(sizes.min()))} to {format_size(int(sizes.max()))}",
        change="" if is_needless else _CHANGE,
        bytes=reserved.excess_bytes,
        line=line,
        patch="" if is_needless else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


@dataclass(frozen=True)
class _Call:
    """Requests with the same call stack.

    Attributes:
        sizes: The call's largest request in each pass, in bytes.
        blocks: The indices of the call's blocks.
    """

    sizes: NDArray[np.int64]
    blocks: NDArray[np.int64]


def _calls(facts: Facts) -> list[_Call]:
    """Returns the calls that request more than `_LARGE`."""
    blocks = facts.blocks
    large = np.flatnonzero((blocks.size > _LARGE) & (blocks.stack > 0))
    ends = facts.passes.boundaries
    number = np.searchsorted(ends, blocks.start[large], side="right")
    order = np.lexsort((number, blocks.stack[large]))
    large, number = large[order], number[order]
    calls = []
    for mine in np.split(np.arange(len(large)), np.flatnonzero(np.diff(blocks.stack[large])) + 1):
        if len(mine):
            first = np.flatnonzero(np.diff(number[mine], prepend=-1))  # of each pass
            sizes = blocks.size[large[mine]].astype(np.int64)
            calls.append(_Call(np.maximum.reduceat(sizes, first), large[mine]))
    return calls


def _most_varied(facts: Facts, calls: Sequence[_Call]) -> tuple[NDArray[np.int64], str | None]:
    """Returns the distinct sizes that one call requested, and the call's line.

    The chosen call has the most distinct sizes. Calls whose sizes never decrease from one pass to
    the next are left out, because such sizes grow rather than vary.
    """
    varied = [call for call in calls if (np.diff(call.sizes) < 0).any()]
    if not varied:
        return np.empty(0, dtype=np.int64), None
    # If several calls have equally many sizes, take the one with the largest request.
    most = max(varied, key=lambda call: (len(np.unique(call.sizes)), int(call.sizes.max())))
    return np.unique(most.sizes), facts.line_of_most(most.blocks)


def _outgrown(facts: Facts, calls: Sequence[_Call]) -> tuple[NDArray[np.int64], str | None]:
    """Returns the sizes of a call whose requests grow from pass to pass, and the call's line.

    Memory that was reserved for one size is too small for the next. The result has no sizes if no
    call grows, if all sizes but the largest add up to less than `_LEAST_OUTGROWN` of the excess, or
    if blocks took more than half of the reserved memory at once.
    """
    excess = facts.reserved.excess_bytes
    grown = [call for call in calls if (np.diff(call.sizes) >= 0).all()]
    most = max(grown, key=lambda call: int(np.unique(call.sizes)[:-1].sum()), default=None)
    if most is None or 2 * excess < facts.reserved.bytes:
        return np.empty(0, dtype=np.int64), None
    sizes = np.unique(most.sizes)
    if sizes[:-1].sum() < _LEAST_OUTGROWN * excess:
        return sizes[:0], None
    return sizes, facts.line_of_most(most.blocks)
