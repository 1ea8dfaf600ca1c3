"""Compiles the model, with a budget that limits how many activations the model keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import find_model, only_model, trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey

_BUDGETS = (1.0, 0.5, 0.25, 0.1, 0.0)
_FINEST = 0.05


def first_budgets(survey: Survey) -> tuple[float, ...]:
    """Returns the activation memory budgets to try first.

    If the model draws random numbers, returns only the full budget. With a smaller budget, PyTorch
    recomputes activations, and a recomputation draws other numbers (pytorch #190758).
    """
    model = only_model(survey)
    if model is None:
        return ()
    return _BUDGETS[:1] if model.has_dropout else _BUDGETS


def next_budgets(peaks: Mapping[float, int], most_bytes: int) -> list[float]:
    """Returns the budgets to try next, each halfway between two tried budgets.

    A budget suffices if its peak is at most `most_bytes`. If tried budgets suffice, the next try
    lies above the largest of them. If none suffices, the next tries lie on both sides of the budget
    with the lowest peak, because a larger budget sometimes gives a lower peak (pytorch #197838).

    >>> next_budgets({1.0: 900, 0.5: 700, 0.25: 500, 0.0: 800}, 600)
    [0.375]
    >>> next_budgets({1.0: 900, 0.5: 700, 0.25: 500, 0.0: 800}, 400)
    [0.125, 0.375]

    Args:
        peaks: Bytes at the peak, by budget.
        most_bytes: The memory that may be used.
    """
    tried = sorted(peaks)
    enough = [budget for budget in tried if peaks[budget] <= most_bytes]
    middle = tried.index(enough[-1] if enough else min(tried, key=peaks.__getitem__))
    beside = tried[middle : middle + 2] if enough else tried[max(0, middle - 1) : middle + 2]
    return [round((low + high) / 2, 3) for low, high in pairwise(beside) if high - low > _FINEST]


def compiled_change(survey: Survey, allocated_bytes: int, budget: float) -> Change:
    """Returns the change that compiles the model with a budget for saved activations."""
    kept = "" if budget == 1 else f", and keep {budget:.3g} of its activations"
    return Change(
        "compile",
        f"compile the model{kept}",
        short="compiled" if budget == 1 else f"compiled, {budget:.3g} kept",
        edit=lambda script: _compiled(script, survey, budget),
        caveat="dropout drops other elements, as with another seed"
        if trained(survey).has_dropout
        else "",
        note="fused kernels round sums differently",
        saves_bytes=allocated_bytes,
        excludes=frozenset({"recomputation", "offload"}),
    )


def _compiled(script: ScriptText, survey: Survey, budget: float) -> ScriptText:
    model = find_model(script, trained(survey))
    changed = script.insert_after(model.statement, [f"{model.name}.compile()"])
    if budget == 1:
        return changed
    setting = f"torch._functorch.config.activation_memory_budget = {budget}"
    return changed.importing("torch", "torch._functorch.config").at_top([setting])
