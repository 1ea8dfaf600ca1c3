"""Changes to the optimizer's step and to its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import find_optimizer_call, find_optimizer_name
from plimsoll.prediction.fitting.changes.smaller_optimizers import EIGHT_BITS, smaller_optimizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import OptimizerUse, Survey

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_STATE_COSTS = 1 / 25e9  # seconds per byte that crosses the bus


def optimizer_changes(survey: Survey, _: int = 0) -> Iterator[Change]:
    """Yields changes to the script's optimizer.

    Yields nothing if the script has no optimizer or several, if the optimizer's class is not from
    `torch.optim`, or if `OptimizerUse.is_a_librarys` is set.
    """
    if len(survey.optimizers) != 1:
        return
    (use,) = survey.optimizers
    if use.is_a_librarys or not use.kind.startswith("torch.optim."):
        return
    kind = use.kind.rpartition(".")[2]
    if use.is_foreach:
        if kind in _FUSED and use.settings.get("capturable") is not True:
            yield Change(
                "step",
                f"use the fused {kind}",
                short=f"fused {kind}",
                edit=_edit(use, {"foreach": None, "fused": "True"}),
                saves_bytes=2 * use.parameter_bytes,
            )
        else:
            yield Change(
                "step",
                f"let {kind} step without lists of tensors (foreach=False)",
                short=f"{kind} with foreach=False",
                edit=_edit(use, {"foreach": "False"}),
                saves_bytes=2 * use.parameter_bytes,
            )
    if use.stepped is not None:
        yield Change(
            "optimizer state",
            f"keep {kind}'s state in the host's memory",
            short=f"{kind}'s state on the host",
            edit=_placed(use),
            allocator="elastic",
            saves_bytes=use.state_bytes,
            costs_seconds=2 * use.state_bytes * _STATE_COSTS,
            excludes=frozenset({"optimizer"}),
        )
    if kind in EIGHT_BITS:
        yield from smaller_optimizers(
            use,
            _replaced(use, f"bitsandbytes.optim.{EIGHT_BITS[kind]}", "bitsandbytes"),
            _replaced(use, "torch.optim.Adafactor", "torch"),
        )


def _edit(use: OptimizerUse, settings: dict[str, str | None]) -> Callable[[ScriptText], ScriptText]:
    def edit(script: ScriptText) -> ScriptText:
        call, _ = find_optimizer_call(script, use)
        return script.replace(call, with_settings(script, call, settings))

    return edit


def _placed(use: OptimizerUse) -> Callable[[ScriptText], ScriptText]:
    def edit(script: ScriptText) -> ScriptText:
        call, statement = find_optimizer_call(script, use)
        name = find_optimizer_name(statement, call)
        changed = script.insert_after(statement, [f"plimsoll.place_optimizer({name})"])
        return changed.importing("plimsoll")

    return edit


def _replaced(use: OptimizerUse, kind: str, module: str) -> Callable[[ScriptText], ScriptText]:
    kept = ("lr", "weight_decay") if "Adafactor" in kind else ("lr", "betas", "eps", "weight_decay")

    def edit(script: ScriptText) -> ScriptText:
        call, _ = find_optimizer_call(script, use)
        given = [script.text_of(each) for each in call.args[:1]]
        given += [f"lr={script.text_of(value)}" for value in call.args[1:2]]
        given += [
            f"{keyword.arg}={script.text_of(keyword.value)}"
            for keyword in call.keywords
            if keyword.arg in (*kept, "params")
        ]
        return script.replace(call, f"{kind}({', '.join(given)})").importing(module)

    return edit
