"""Finds the address of a tensor's memory."""

from __future__ import annotations

from typing import Any


def storage_address(tensor: Any) -> int:
    """Returns the address of a tensor's storage.

    Returns 0 if PyTorch cannot give an address, for example for a tensor inside `vmap`.
    """
    part = getattr(tensor, "_local_tensor", tensor)  # a DTensor's local tensor
    try:
        return int(part.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
