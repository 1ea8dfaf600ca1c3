"""The change to fused attention, which keeps no matrix of attention weights in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import find_model, only_model, trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey


def attention_changes(survey: Survey, allocated_bytes: int) -> Iterator[Change]:
    """Yields the change to fused attention, for models of Transformers with eager attention."""
    model = only_model(survey)
    if model is None:
        return
    if model.attention == "eager":
        yield Change(
            "attention",
            "compute attention in one kernel (sdpa)",
            short="attention in one kernel",
            edit=lambda script: _fused(script, survey),
            saves_bytes=allocated_bytes,
        )


def _fused(script: ScriptText, survey: Survey) -> ScriptText:
    use = trained(survey)
    model = find_model(script, use)
    name = f'getattr({model.name}, "module", {model.name})' if use.is_wrapped else model.name
    return script.insert_after(model.statement, [f'{name}.set_attn_implementation("sdpa")'])
