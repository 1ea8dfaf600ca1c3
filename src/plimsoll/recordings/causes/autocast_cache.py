"""Half copies of the weights that autocast keeps where no graph needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.05


def autocast_cache(facts: Facts) -> Cause | None:
    """Find a twentieth of the peak or more in autocast's copies, under `no_grad`."""
    cache = facts.notes.autocast_cache
    if cache is None or cache.bytes < _LEAST_SHARE * facts.allocated_bytes:
        return None
    size = format_size(cache.bytes)
    return Cause(
        name="autocast_cache",
        sentence=f"autocast keeps half copies of the weights at {subject(cache.line)}, {size}, "
        "until its block ends",
        change="let it make them anew for each use, or convert the model once with .half()",
        bytes=cache.bytes,
        line=cache.line,
        patch='torch.autocast("cuda", cache_enabled=False)',
    )
