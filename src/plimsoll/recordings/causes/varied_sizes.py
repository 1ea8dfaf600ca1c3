"""Recognises reserved memory that is free but does not fit requests, because sizes vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import MiB, format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.25
_FEWEST_SIZES = 6
_LEAST_RATIO = 1.5
_LARGE = MiB


def varied_sizes(facts: Facts) -> Cause | None:
    """Finds a call with varying sizes, if a quarter or more of reserved memory is free."""
    reserved = facts.reserved
    if reserved.free_bytes < _LEAST_SHARE * reserved.bytes or not len(facts.passes):
        return None
    sizes, line = _most_varied(facts)
    if len(sizes) < _FEWEST_SIZES or sizes.max() < _LEAST_RATIO * sizes.min():
        return None
    return Cause(
        name="varied_sizes",
        sentence=f"{format_size(reserved.free_bytes)} of the {format_size(reserved.bytes)} that is "
        f"reserved is free and did not fit later requests: sizes at {subject(line)} vary, "
        f"from {format_size(int(sizes.min()))} to {format_size(int(sizes.max()))}",
        change="let segments grow (expandable_segments), or use plimsoll's allocator "
        "(`plimsoll run`)",
        bytes=reserved.free_bytes,
        line=line,
        patch="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


def _most_varied(facts: Facts) -> tuple[NDArray[np.int64], str | None]:
    """Returns the distinct sizes that one call requested, and the call's line.

    Requests with the same call stack are one call. Only a call's largest request in each pass
    counts. The chosen call has the most distinct sizes. Calls whose sizes never decrease from one
    pass to the next are left out, because such sizes grow rather than vary.
    """
    blocks = facts.blocks
    large = np.flatnonzero((blocks.size > _LARGE) & (blocks.stack > 0))
    ends = facts.passes.boundaries
    number = np.searchsorted(ends, blocks.start[large], side="right")
    stacks, which = np.unique(blocks.stack[large], return_inverse=True)
    order = np.lexsort((number, which))
    large, key = large[order], (which * (len(ends) + 1) + number)[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))  # the first block of each pass of each call
    if not len(first):
        return large, None
    largest = np.maximum.reduceat(blocks.size[large].astype(np.int64), first)
    calls = np.split(largest, np.flatnonzero(np.diff(key[first] // (len(ends) + 1))) + 1)
    varied = [np.unique(sizes) if (np.diff(sizes) < 0).any() else sizes[:0] for sizes in calls]
    # If several calls have equally many sizes, take the one with the largest request.
    most = max(range(len(calls)), key=lambda call: (len(varied[call]), int(calls[call].max())))
    return varied[most], facts.line_of_most(large[blocks.stack[large] == stacks[most]])
