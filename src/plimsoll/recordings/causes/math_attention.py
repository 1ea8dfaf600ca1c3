"""Recognises attention that runs the math kernel, which keeps all attention scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts, MathAttention

_LEAST_SHARE = 0.05
_ALIKE = 2


def math_attention(facts: Facts) -> Cause | None:
    """Finds attention whose scores take 5 % of the peak or more."""
    held = [(_live_bytes(facts, one), one) for one in facts.notes.math_attention]
    size, most = max(held, key=lambda each: each[0], default=(0, None))
    if most is None or not size or size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    return Cause(
        name="math_attention",
        sentence=f"attention at {subject(most.line)} runs the math kernel, which keeps all scores, "
        f"{format_size(size)} at the peak: {most.reason}",
        change="give attention what a fused kernel takes",
        bytes=size,
        line=most.line,
    )


def _live_bytes(facts: Facts, noted: MathAttention) -> int:
    """Returns the bytes that are live at the peak for a call's attention scores.

    Copies of the scores in other types are included.
    """
    blocks = facts.live
    if noted.line is not None:
        # If a library's trainer runs the steps, one line of the user requests all memory. So the
        # whole text has to match: the user's line, and the library's line that it led to.
        is_line = np.array([each == noted.line for each in facts.lines], dtype=np.bool_)
        blocks = blocks[is_line[facts.line[blocks]]]
    sizes = facts.blocks.size[blocks]
    # Blocks from half to twice the noted size count: the kernel copies half-precision scores to
    # float32, and a mask may have a different type than the scores.
    return facts.bytes_of(
        blocks[(sizes >= noted.bytes // _ALIKE) & (sizes <= _ALIKE * noted.bytes)]
    )
