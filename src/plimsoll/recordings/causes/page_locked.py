"""Recognises page-locked host memory whose pool rounds requests up to powers of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import MiB, format_size
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_BYTES = 256 * MiB
_LEAST_RATIO = 1.25
_THRESHOLD = "PYTORCH_CUDA_ALLOC_CONF=pinned_max_round_threshold_mb:64"


def page_locked(facts: Facts) -> Cause | None:
    """Finds a pool that exceeds the requests by at least a quarter and by at least 256 MiB."""
    asked, taken = facts.notes.pinned_asked_bytes, facts.notes.pinned_taken_bytes
    if taken - asked < _LEAST_BYTES or taken < _LEAST_RATIO * asked:
        return None
    return Cause(
        name="page_locked",
        sentence=f"page-locked memory is rounded to powers of two: {format_size(taken)} of the "
        f"host's memory for {format_size(asked)}",
        change="pin one large tensor and use parts of it; from PyTorch 2.13 on, set a threshold",
        bytes=taken - asked,
        patch=_THRESHOLD if facts.notes.has_pinned_threshold else "",
        on_host=True,
    )
