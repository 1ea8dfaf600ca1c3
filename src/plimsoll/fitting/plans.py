"""A plan: its parts, which show themselves as text."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.fitting.plan_parts import PlanParts
from plimsoll.fitting.plan_text import plan_text


@dataclass(frozen=True)
class Plan(PlanParts):
    """How a script fits; as text, what `plimsoll fit` prints. See `PlanParts`.

    Made by `plimsoll.fit_within`; see docs/fit.md.
    """

    def __str__(self) -> str:
        return plan_text(self).plain
