"""The addresses of the memory of a program's tensors."""

from __future__ import annotations

from typing import Any


def storage_address(tensor: Any) -> int:
    """Returns the address of a tensor's storage; 0 for one without, as under vmap."""
    part = getattr(tensor, "_local_tensor", tensor)  # a DTensor's part in this process
    try:
        return int(part.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
