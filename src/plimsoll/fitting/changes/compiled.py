"""The model, compiled, with more or less of its activations kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.fitting.changes.change import Change
from plimsoll.fitting.changes.sites import find_model, trained
from plimsoll.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey

_BUDGETS = (None, 0.75, 0.5, 0.25, 0.0)


def compiled_changes(survey: Survey, allocated_bytes: int) -> Iterator[Change]:
    """Compile the model, under several budgets for what it keeps for the backward pass."""
    try:
        trained(survey)
    except CannotChangeError:
        return
    for budget in _BUDGETS:
        kept = "" if budget is None else f", and keep {budget:.0%} of its activations"
        yield Change(
            "compile",
            f"compile the model{kept}",
            short="compiled" if budget is None else f"compiled, {budget:.0%} kept",
            edit=lambda script, budget=budget: _compiled(script, survey, budget),  # type: ignore[misc]
            saves_bytes=allocated_bytes,
            excludes=frozenset({"recomputation", "offload"}),
        )


def _compiled(script: ScriptText, survey: Survey, budget: float | None) -> ScriptText:
    model = find_model(script, trained(survey))
    changed = script.insert_after(model.statement, [f"{model.name}.compile()"])
    if budget is None:
        return changed
    setting = f"torch._functorch.config.activation_memory_budget = {budget}"
    return changed.importing("torch", "torch._functorch.config").at_top([setting])
