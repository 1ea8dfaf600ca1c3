"""Recognises a cache of keys and values that each pass extends by copying it with torch.cat."""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.2
_FEWEST_LENGTHS = 8
_LEAST_COPIED = 0.8
"""Copies count as a growing cache if at least this share of them is freed soon.

A copy is freed soon if its free comes after the request of the next copy, but before the request of
the copy after that.
"""


def growing_cache(facts: Facts) -> Cause | None:
    """Finds a line whose evenly growing copies hold a fifth of the peak or more."""
    found = np.array(sorted({each for one in _grown(facts) for each in one}), dtype=np.int64)
    held = np.intersect1d(facts.live, found)
    size = facts.bytes_of(held)
    if not size or size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    line = facts.line_of_most(held)
    is_cache = np.isin(held, facts.live_of("kv_cache")).all()
    if not is_cache and not _concatenates(line):
        return None
    largest = format_size(int(facts.blocks.size[held].max()))
    return Cause(
        name="growing_cache",
        sentence=f"{subject(line)} makes its cache anew with each pass, an entry longer, and each "
        f"copy needs old and new at once, up to {largest}: {format_size(size)} at the peak",
        change="allocate the cache once, for the longest sequence, and write into it",
        bytes=size,
        line=line,
        patch="cache[:, :, position] = key  # cache = torch.empty(…), made once",
    )


def _concatenates(line: str | None) -> bool:
    """Returns whether a line, "FILE:LINE FUNCTION", calls a concatenation.

    Growth alone does not suffice, because a model's results grow with the sequence too.
    """
    place = re.match(r"(.+):(\d+)(?: |$)", line or "")
    return place is not None and "cat(" in linecache.getline(place[1], int(place[2]))


def _grown(facts: Facts) -> Iterator[NDArray[np.int64]]:
    """Yields the blocks of each call stack that requests a larger copy in each pass."""
    blocks = facts.blocks
    held = np.unique(blocks.stack[facts.live])
    stacks, counts = np.unique(blocks.stack, return_counts=True)
    held = np.intersect1d(held, stacks[counts >= _FEWEST_LENGTHS])
    for stack in held[held > 0].tolist():
        mine = np.flatnonzero(blocks.stack == stack)
        mine = mine[np.argsort(blocks.start[mine], kind="stable")]
        sizes = blocks.size[mine].astype(np.int64)
        lengths, first, count = np.unique(sizes, return_index=True, return_counts=True)
        if len(lengths) < _FEWEST_LENGTHS or (np.diff(sizes) < 0).any():
            continue
        growth = np.diff(lengths)
        if (growth != growth[0]).any() or len(np.unique(count[:-1])) > 1:
            continue
        # A list of ever larger tensors also grows evenly, but the list keeps all its tensors. A
        # program that copies a cache frees the old copy soon after it requests the next one.
        ends = np.maximum.reduceat(blocks.end[mine], first)
        begins = blocks.start[mine][first]
        is_copied = (ends[:-2] > begins[1:-1]) & (ends[:-2] < begins[2:])
        if is_copied.mean() >= _LEAST_COPIED:
            yield mine
