"""Attention that runs the math kernel, which keeps all scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.05


def math_attention(facts: Facts) -> Cause | None:
    """Find calls of attention whose scores take a twentieth of the peak or more."""
    most = max(facts.notes.math_attention, key=lambda one: one.bytes, default=None)
    if most is None or most.bytes < _LEAST_SHARE * facts.allocated_bytes:
        return None
    return Cause(
        name="math_attention",
        sentence=f"attention at {subject(most.line)} runs the math kernel, which keeps all scores, "
        f"{format_size(most.bytes)} a copy: {most.reason}",
        change="give attention what a fused kernel takes",
        bytes=most.bytes,
        line=most.line,
    )
