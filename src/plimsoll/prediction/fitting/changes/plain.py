"""Collects the changes that follow from the survey of the unchanged script.

Recomputation and offloading are elsewhere, because they also depend on how much memory is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.attention import attention_changes
from plimsoll.prediction.fitting.changes.early_zero_grad import gradient_changes
from plimsoll.prediction.fitting.changes.loss import loss_changes
from plimsoll.prediction.fitting.changes.of_causes import cause_changes
from plimsoll.prediction.fitting.changes.own_options import own_option_changes
from plimsoll.prediction.fitting.changes.precision import precision_changes
from plimsoll.prediction.fitting.changes.stepping import optimizer_changes
from plimsoll.prediction.fitting.changes.trainer import trainer_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.survey import Survey


KINDS = (
    cause_changes,
    optimizer_changes,
    gradient_changes,
    loss_changes,
    attention_changes,
    precision_changes,
    trainer_changes,
    own_option_changes,
)
"""The functions that yield changes. Each takes a survey and the peak of allocated bytes."""


def plain_changes(survey: Survey, allocated_bytes: int) -> Iterator[Change]:
    """Yields the changes of all `KINDS`, for a program with this peak of allocated bytes."""
    for kind in KINDS:
        yield from kind(survey, allocated_bytes)
