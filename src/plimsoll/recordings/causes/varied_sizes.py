"""Reserved memory that is free and does not fit, because the sizes of requests vary."""

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
    """Find a quarter or more of what is reserved free, and a call whose size differs by pass."""
    reserved = facts.reserved
    if reserved.free_bytes < _LEAST_SHARE * reserved.bytes or not len(facts.passes):
        return None
    sizes, line = _most_varied(facts)
    if len(sizes) < _FEWEST_SIZES or sizes.max() < _LEAST_RATIO * sizes.min():
        return None
    return Cause(
        name="varied_sizes",
        sentence=f"{format_size(reserved.free_bytes)} of the {format_size(reserved.bytes)} that is "
        f"reserved is free and did not fit what was asked for: sizes at {subject(line)} vary, "
        f"from {format_size(int(sizes.min()))} to {format_size(int(sizes.max()))}",
        change="let segments grow (expandable_segments), or use plimsoll's allocator "
        "(`plimsoll run`)",
        bytes=reserved.free_bytes,
        line=line,
        patch="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


def _most_varied(facts: Facts) -> tuple[NDArray[np.int64], str | None]:
    """The sizes that one call asks for, the largest of each pass, and its line."""
    large = np.flatnonzero(facts.blocks.size > _LARGE)
    stacks, which = np.unique(facts.blocks.stack[large], return_inverse=True)
    ends = facts.passes.boundaries
    number = np.searchsorted(ends, facts.blocks.start[large], side="right")
    table = np.zeros((len(stacks), len(ends) + 1), dtype=np.int64)
    np.maximum.at(table, (which, number), facts.blocks.size[large].astype(np.int64))
    varied = [np.unique(row[row > 0]) for row in table]
    # Among calls that vary as much, the one that asks for the most counts.
    most = max(varied, key=lambda sizes: (len(sizes), int(sizes.max())), default=large[:0])
    of_call = [index for index, sizes in enumerate(varied) if sizes is most]
    mine = large[np.isin(which, of_call)]
    return most, facts.line_of_most(mine) if len(mine) else None
