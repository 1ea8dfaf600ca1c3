"""The first step of `torch.backends.cudnn.benchmark`, which tries every plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.2


def search_of_plans(facts: Facts) -> Cause | None:
    """Find a fifth of the peak or more in workspaces of a search, in the first step."""
    ends = facts.steps.boundaries
    if not facts.notes.searches or len(ends) < 2 or facts.event >= ends[1]:
        return None
    size = facts.bytes_of(facts.live_of("workspaces"))
    if size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    return Cause(
        name="search_of_plans",
        sentence="cudnn.benchmark tries every plan of a convolution in the first step: its "
        f"workspaces take {format_size(size)} there, and less in later steps",
        change="try fewer plans, or none",
        bytes=size,
        patch="torch.backends.cudnn.benchmark = False",
    )
