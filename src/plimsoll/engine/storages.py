"""Finds the address of a tensor's memory."""

from __future__ import annotations

from typing import Any


def storage_address(tensor: Any) -> int:
    """Returns the address of a tensor's storage; 0 if it has none, as inside `vmap`."""
    part = getattr(tensor, "_local_tensor", tensor)  # a DTensor's local tensor
    try:
        return int(part.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
