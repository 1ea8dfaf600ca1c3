"""Computes the loss over many classes in chunks.

The layer that makes the logits can run in the same chunks. The logits of the whole batch then never
exist at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import MiB
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import calls_of, find_model, only_model
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import LossUse, ModelUse, Survey

_LEAST_BYTES = 16 * MiB
_LEAST_ROWS = 64
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")


def loss_changes(survey: Survey, _: int = 0) -> Iterator[Change]:
    """Yields changes that compute cross_entropy, or Transformers' logits, in chunks of rows."""
    if not survey.losses:
        return
    use = survey.losses[0]
    if use.logits_bytes >= _LEAST_BYTES and use.rows >= _LEAST_ROWS:
        yield Change(
            "loss",
            "compute the loss in chunks of rows",
            short="loss in chunks",
            edit=lambda script: _in_chunks(script, use),
            saves_bytes=6 * use.logits_bytes,
        )
        yield from _with_head(survey, use)


def _with_head(survey: Survey, use: LossUse) -> Iterator[Change]:
    model = only_model(survey)
    if model is None:
        return
    if model.kind.endswith(_LANGUAGE_MODELS):
        yield Change(
            "loss",
            "compute the logits and their loss in chunks of tokens",
            short="logits in chunks",
            edit=lambda script: _fused(script, model),
            note="the output has no logits then",
            saves_bytes=8 * use.logits_bytes,
        )


def _fused(script: ScriptText, model: ModelUse) -> ScriptText:
    found = find_model(script, model)
    line = f"plimsoll.fuse_loss({found.name})"
    return script.insert_after(found.statement, [line]).importing("plimsoll")


def _in_chunks(script: ScriptText, use: LossUse) -> ScriptText:
    if use.called is not None:
        try:
            block, place = script.statements(script.now(use.called.line))[-1]
        except CannotChangeError:
            block, place = [], 0
        for call in calls_of(block[place : place + 1], "cross_entropy"):
            return script.replace(call.func, "plimsoll.cross_entropy").importing("plimsoll")
    added = "torch.nn.functional.cross_entropy = plimsoll.cross_entropy"
    return script.importing("plimsoll", "torch").at_top([added])
