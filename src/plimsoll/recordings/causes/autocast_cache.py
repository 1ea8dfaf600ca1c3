"""Recognises half-precision copies of weights that autocast keeps although no graph needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.05


def autocast_cache(facts: Facts) -> Cause | None:
    """Finds autocast's unused copies of weights, if they are 5 % of the peak or more."""
    copies = autocast_copies(facts)
    size = facts.bytes_of(copies)
    if not size or size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    line = facts.line_of_most(copies)
    return Cause(
        name="autocast_cache",
        sentence=f"autocast keeps half copies of the weights that {subject(line)} uses, "
        f"{format_size(size)}, until its block ends",
        change="let it make them anew for each use, or convert the model once with .half()",
        bytes=size,
        line=line,
        patch='torch.autocast("cuda", cache_enabled=False)',
    )


def autocast_copies(facts: Facts) -> NDArray[np.int64]:
    """Returns the unused activations that are half as large as a parameter: autocast's copies.

    Autocast makes its copies as if autograd were recording, even under `no_grad`
    (aten/src/ATen/autocast_mode.cpp, cached_cast).
    """
    found = facts.live_of("unused_activations")
    parameters = facts.blocks.size[facts.live_of("parameters")]
    copies = found[np.isin(2 * facts.blocks.size[found], parameters)]
    sizes, counts = np.unique(2 * facts.blocks.size[copies], return_counts=True)
    many = [size for size, count in zip(sizes, counts, strict=True)
            if count > np.count_nonzero(parameters == size)]  # fmt: skip
    return copies[~np.isin(2 * facts.blocks.size[copies], many)]
