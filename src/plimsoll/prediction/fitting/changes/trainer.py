"""Changes to the arguments of a Trainer: its precision and its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.accumulation import find_trainer_call
from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import only_model
from plimsoll.prediction.fitting.changes.smaller_optimizers import smaller_optimizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import OptimizerUse, Survey


def trainer_changes(survey: Survey, allocated_bytes: int) -> Iterator[Change]:
    """Yields changes to the arguments of Transformers' Trainer, if a library made the optimizer."""
    if len(survey.optimizers) != 1:
        return
    (use,) = survey.optimizers
    if not use.is_a_librarys:
        return
    yield from _optimizers(use)
    model = only_model(survey)
    if model is None:
        return
    if model.autocast is None and model.parameter_types.get("float32", 0):
        yield Change(
            "precision",
            "compute in bfloat16 where that is safe (bf16=True)",
            short="bf16=True",
            edit=_set({"bf16": "True"}),
            caveat="products of matrices are computed in bfloat16",
            saves_bytes=allocated_bytes // 2,
        )


def _optimizers(use: OptimizerUse) -> Iterator[Change]:
    if not use.kind.endswith(".AdamW"):
        return
    if use.is_foreach:
        yield Change(
            "step",
            "use the fused AdamW",
            short="fused AdamW",
            edit=_set({"optim": '"adamw_torch_fused"'}),
            saves_bytes=2 * use.parameter_bytes,
        )
    yield from smaller_optimizers(
        use, _set({"optim": '"adamw_8bit"'}), _set({"optim": '"adafactor"'})
    )


def _set(settings: dict[str, str | None]) -> Callable[[ScriptText], ScriptText]:
    def edit(script: ScriptText) -> ScriptText:
        call = find_trainer_call(script)
        return script.replace(call, with_settings(script, call, settings))

    return edit
