"""What a tensor takes on this rank: of one that is shared out, the rank's part."""

from __future__ import annotations

from typing import Any


def own_bytes(tensor: Any) -> int:
    """Of its contents here."""
    local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
    return int(local.nbytes)
