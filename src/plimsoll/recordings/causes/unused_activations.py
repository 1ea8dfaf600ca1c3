"""Recognises evaluation without `no_grad`: autograd saves memory, and no backward pass runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.autocast_cache import autocast_copies
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import mostly_at, subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.1


def unused_activations(facts: Facts) -> Cause | None:
    """Finds activations that no backward pass uses, if they are a tenth of the peak or more."""
    found = np.setdiff1d(facts.live_of("unused_activations"), autocast_copies(facts))
    # A training step has unused activations too. So a block counts here only if no backward pass
    # allocates during the block's life.
    starts, ends = facts.blocks.start[found], facts.blocks.end[found]
    passes = np.searchsorted(facts.backward_starts, (starts, ends))
    found = found[passes[0] == passes[1]]
    # Autograd keeps nothing if no operation has a grad_fn, as in a model with frozen parameters.
    if facts.are_from(found, lambda origin: not origin.may_have_grad_fn).all():
        return None
    size = facts.bytes_of(found)
    if not size or size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    if facts.bytes_of(facts.live_of("activations")) > size:  # the peak is in a training step
        return None
    line = facts.callers_line(found)
    if line is None and facts.blocks.stack.any():
        return None
    return Cause(
        name="unused_activations",
        sentence=f"{subject(line)} keeps {format_size(size)}"
        f"{mostly_at(line, facts.line_of_most(found))} for a backward pass that never runs",
        change="put what runs there under torch.no_grad()",
        bytes=size,
        line=line,
        patch="with torch.no_grad():",
    )
