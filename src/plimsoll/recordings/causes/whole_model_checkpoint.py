"""Recognises a single checkpoint around the whole model: it recomputes all layers together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.analysis.category_names import NUMBER
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.25
_NEARLY_ALL = 0.6
"""If this share of recomputed memory is live at the peak, one checkpoint covers the whole model.

If each layer has a checkpoint of its own, a smaller share is live.
"""


def whole_model_checkpoint(facts: Facts) -> Cause | None:
    """Finds a step whose recomputed memory is nearly all live at the peak.

    This memory must be at least a quarter of the peak.
    """
    found = facts.live_of("recomputed_activations")
    size = facts.bytes_of(found)
    ends = facts.steps.boundaries
    if not size or size < _LEAST_SHARE * facts.allocated_bytes or not len(ends):
        return None
    after = int(np.searchsorted(ends, facts.event, side="right"))
    first = int(ends[after - 1]) if after else 0
    last = int(ends[after]) if after < len(ends) else facts.blocks.event_count
    blocks = facts.blocks
    of_step = (facts.category == NUMBER["recomputed_activations"]) & (blocks.start >= first)
    recomputed = int(blocks.size[of_step & (blocks.start < last)].sum())
    if size < _NEARLY_ALL * recomputed:
        return None
    return Cause(
        name="whole_model_checkpoint",
        sentence=f"one checkpoint recomputes nearly all of a step at once, {format_size(size)}, as "
        "one around the whole model does",
        change="put a checkpoint around each block",
        bytes=size,
        line=facts.line_of_most(found),
        patch="for block in model: x = checkpoint(block, x, use_reentrant=False)",
    )
