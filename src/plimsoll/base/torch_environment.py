"""The environment variable by which PyTorch stops caching GPU memory."""

from __future__ import annotations

import os

NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""With the value 1, PyTorch calls the driver for each block (c10/cuda/CUDACachingAllocator.cpp)."""
WITHOUT_CACHE = (
    f"{NO_CACHING}=1 makes PyTorch call the driver for each block, and its own statistics stay at 0"
)
"""The sentence that plimsoll prints where the variable has an effect."""


def is_caching_forbidden() -> bool:
    """Returns whether the environment forbids PyTorch to cache GPU memory."""
    return os.environ.get(NO_CACHING) == "1"
