"""Where the memory of a program's tensors lies."""

from __future__ import annotations

from typing import Any


def storage_address(tensor: Any) -> int:
    """Where its storage lies; 0 for a tensor that has none, such as one under vmap."""
    part = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, what this process holds
    try:
        return int(part.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
