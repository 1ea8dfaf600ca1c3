"""A plan that shows itself as text, and as tables in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.base.notebook_form import NotebookForm
from plimsoll.prediction.fitting.html import plan_html
from plimsoll.prediction.fitting.plan_parts import PlanParts
from plimsoll.prediction.fitting.plan_text import plan_text


@dataclass(frozen=True)
class Plan(NotebookForm, PlanParts):
    """A plan that makes a script fit. It prints like `plimsoll fit`. See `PlanParts`.

    `plimsoll.fit_within` returns it; see docs/fit.md.
    """

    def __str__(self) -> str:
        return plan_text(self).plain

    def _repr_html_(self) -> str:
        return plan_html(self)
