"""Rounds requested sizes to block sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def rounded_sizes(
    sizes: NDArray[np.uint64], round_request: Callable[[int], int]
) -> NDArray[np.uint64]:
    """Returns the block size for each requested size.

    Args:
        sizes: The requested bytes.
        round_request: A function that rounds one size by the allocator's rules.
    """
    distinct, place = np.unique(sizes, return_inverse=True)
    rounded = np.array([round_request(int(size)) for size in distinct], dtype=np.uint64)
    result: NDArray[np.uint64] = rounded[place]
    return result
