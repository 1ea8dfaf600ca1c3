"""Memory that autograd saved for a backward pass that never runs: evaluation without `no_grad`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.1


def unused_activations(facts: Facts) -> Cause | None:
    """Find a tenth of the peak or more in activations that no backward pass uses."""
    found = facts.live_of("unused_activations")
    size = facts.bytes_of(found)
    if facts.notes.autocast_cache is not None:  # whose copies look as if a graph had saved them
        size -= facts.notes.autocast_cache.bytes
    if size <= 0 or size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    line = facts.line_of_most(found)
    return Cause(
        name="unused_activations",
        sentence=f"{subject(line)} keeps {format_size(size)} for a backward pass that never runs",
        change="put what runs there under torch.no_grad()",
        bytes=size,
        line=line,
        patch="with torch.no_grad():",
    )
