"""Finds the size of a tensor on this rank. A sharded tensor has a part on each rank."""

from __future__ import annotations

from typing import Any


def own_bytes(tensor: Any) -> int:
    """Returns the bytes of the tensor's contents on this rank."""
    local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's local tensor
    return int(local.nbytes)
