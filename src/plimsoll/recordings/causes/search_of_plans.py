"""Recognises a peak in the first step, where cuDNN tries every plan of each convolution.

`torch.backends.cudnn.benchmark` makes cuDNN try them. A plan is an algorithm with its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.2
_FEWEST_ENDS = 3


def search_of_plans(facts: Facts) -> Cause | None:
    """Finds a search of plans that makes up at least a fifth of the peak in the first step."""
    ends = facts.steps.boundaries
    if not facts.notes.searches or len(ends) < _FEWEST_ENDS or facts.event >= ends[1]:
        return None
    level = facts.blocks.level()
    size = int(level[facts.event]) - int(level[ends[1] :].max(initial=0))
    # The first step's peak exceeds the later peaks by `size`. All plans that are tried share one
    # workspace. So if the search is the reason, a single block has at least half of `size`.
    largest = int(facts.blocks.size[facts.live_of("temporaries", "workspaces")].max(initial=0))
    if size < _LEAST_SHARE * facts.allocated_bytes or 2 * largest < size:
        return None
    return Cause(
        name="search_of_plans",
        sentence="cudnn.benchmark tries every plan of a convolution in the first step, which takes "
        f"{format_size(size)} more than later ones",
        change="try fewer plans, or none",
        bytes=size,
        patch="torch.backends.cudnn.benchmark = False",
    )
