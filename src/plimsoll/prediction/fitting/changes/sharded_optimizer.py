"""Shards the optimizer's state over the ranks: ZeRO's first stage."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes import sites
from plimsoll.prediction.fitting.changes.call_settings import keyword_text
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.wrapped_model import DATA_PARALLEL, only_wrapping
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import OptimizerUse, Survey

_LINK_RATE = 100e9  # approximate bytes per second between ranks


def sharded_optimizer_changes(survey: Survey) -> Iterator[Change]:
    """Yields the change that makes each rank keep optimizer state for only some parameters.

    The rank then updates only these parameters.
    """
    if only_wrapping(survey, DATA_PARALLEL) is None or len(survey.optimizers) != 1:
        return
    (use,) = survey.optimizers
    if use.made is None or not use.kind.startswith("torch.optim."):
        return
    elsewhere = 1 - 1 / survey.ranks
    yield Change(
        "sharding",
        "shard the optimizer's state over the ranks (ZeroRedundancyOptimizer)",
        edit=lambda script: _sharded(script, use),
        order=1,
        note="each rank updates a part of the parameters, and sends it to the others",
        saves_bytes=int((use.state_bytes + 2 * use.parameter_bytes) * elsewhere),
        costs_seconds=use.parameter_bytes / _LINK_RATE,
        excludes=frozenset({"optimizer state", "optimizer"}),
    )


def _sharded(script: ScriptText, use: OptimizerUse) -> ScriptText:
    call, statement = sites.find_optimizer_call(script, use)
    _check_unsaved(script, sites.find_optimizer_name(statement, call))
    values = [script.text_of(each) for each in call.args]
    if len(values) > 2 or any(isinstance(each, ast.Starred) for each in call.args):
        raise CannotChangeError("the optimizer is given settings without their names")
    given = [*values[:1], f"optimizer_class={script.text_of(call.func)}"]
    given += [f"lr={value}" for value in values[1:]]
    given += [keyword_text(script, keyword) for keyword in call.keywords]
    text = f"torch.distributed.optim.ZeroRedundancyOptimizer({', '.join(given)})"
    return script.replace(call, text).importing("torch.distributed.optim")


def _check_unsaved(script: ScriptText, optimizer: str) -> None:
    """Raises a `CannotChangeError` if the script saves the optimizer's state.

    After the change, no rank has all of this state.
    """
    own = optimizer.rpartition(".")[2]
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Attribute) or node.attr != "state_dict":
            continue
        if sites.last_name(node.value) == own:
            raise CannotChangeError(
                "the script saves the optimizer's state, which has to be collected first "
                "(consolidate_state_dict)"
            )
