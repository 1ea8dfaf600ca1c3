"""Changes that compute with numbers of fewer bits, or keep such numbers in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import find_model, find_pass, only_model, trained
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey

_HALVES = ("bfloat16", "float16")


def precision_changes(survey: Survey, allocated_bytes: int) -> Iterator[Change]:
    """Yields a change that computes in bfloat16, and one that keeps parameters in bfloat16."""
    model = only_model(survey)
    if model is None:
        return
    whole = model.parameter_types.get("float32", 0)
    if not whole or any(model.parameter_types.get(half) for half in _HALVES):
        return
    by_library = any(use.is_a_librarys for use in survey.optimizers)
    if model.autocast is None and not by_library:
        yield Change(
            "precision",
            "compute in bfloat16 where that is safe (autocast)",
            short="autocast to bfloat16",
            edit=lambda script: _cast(script, survey),
            order=2,
            caveat="products of matrices are computed in bfloat16",
            saves_bytes=allocated_bytes // 2,
        )
    if survey.ranks > 1:  # DistributedDataParallel or FSDP would keep the old parameters
        return
    yield Change(
        "precision",
        "keep parameters, gradients and optimizer state in bfloat16",
        short="all in bfloat16",
        edit=lambda script: _half(script, survey),
        caveat="parameters are updated in bfloat16, which loses small updates",
        saves_bytes=allocated_bytes // 2,
    )


def _cast(script: ScriptText, survey: Survey) -> ScriptText:
    forward = find_pass(script, survey).forward
    if not forward:
        raise CannotChangeError("the model is called in the statement that calls backward()")
    header = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    return script.wrap(forward[0], forward[-1], header).importing("torch")


def _half(script: ScriptText, survey: Survey) -> ScriptText:
    model = find_model(script, trained(survey))
    changed = script.insert_after(model.statement, [f"{model.name}.to(torch.bfloat16)"])
    return changed.importing("torch")
