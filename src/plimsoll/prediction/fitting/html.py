"""Formats a `FitParts` or a `PlanParts` as HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.notebook_form import answer, folded, preformatted, size_table, table
from plimsoll.base.units import format_seconds, format_size
from plimsoll.prediction.fitting.plan_text import plan_text
from plimsoll.prediction.fitting.text import fit_text, trial_text
from plimsoll.recordings.analysis.category_names import category_title

if TYPE_CHECKING:
    from plimsoll.prediction.fitting.parts import FitParts
    from plimsoll.prediction.fitting.plan_parts import PlanParts


def fit_html(fit: FitParts) -> str:
    """Returns HTML: a sentence with the largest value that fits, then a table of tried values."""
    text = fit_text(fit)
    rows = [(str(trial.value), trial_text(trial, fit.total_bytes)) for trial in fit.curve]
    first = answer(text.splitlines()[0])
    return f"{first}{table('', rows, (fit.vary, ''))}{folded('All of it', text)}"


def plan_html(plan: PlanParts) -> str:
    """Returns the answer, the patch, and a table of memory against time, as HTML."""
    text = plan_text(plan).plain
    front = [
        (
            " + ".join(tried.short) or "unchanged",
            "?" if tried.device_used_bytes is None else format_size(tried.device_used_bytes),
            "-" if tried.step_seconds is None else format_seconds(tried.step_seconds),
        )
        for tried in plan.front
    ]
    held = sorted(plan.floor_held.items(), key=lambda item: -item[1])
    floor = [(category_title(name), size) for name, size in held]
    return "".join(
        [
            answer(text.splitlines()[0]),
            preformatted(plan.patch) if plan.patch else "",
            preformatted(plan.command) if plan.fits else "",
            table("Memory against time", front, ("with", "takes", "step, about")),
            "" if plan.fits else size_table("What holds the least that it took", floor),
            folded("All of it", text),
        ]
    )
