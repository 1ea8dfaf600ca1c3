"""Changes to FSDP's options: how long parameters stay whole, and where their shards are kept.

They can be made in scripts that use the first or the second version of FSDP.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes import wrapped_model
from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import calls_of
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey, Wrapping

_BUS_RATE = 25e9  # approximate bytes per second to the host and back
_HOST_RATE = 20e9  # approximate bytes per second that the host touches in an optimizer step
# Adam reads parameters, gradients and two states, and writes all of these but the gradients.
_TIMES_TOUCHED = 7
_ON_HOST = "keep parameters, gradients and optimizer state in the host's memory"
_FREED = "free whole parameters after the forward pass"


def fully_sharded_changes(survey: Survey, script: ScriptText) -> Iterator[Change]:
    """Yields changes that keep less of a sharded model on the card, for both versions of FSDP."""
    wrapping = wrapped_model.only_wrapping(survey, wrapped_model.FULLY_SHARDED)
    if wrapping is not None:
        if wrapping.settings.get("sharding_strategy") in ("SHARD_GRAD_OP", "NO_SHARD"):
            strategy = "torch.distributed.fsdp.ShardingStrategy.FULL_SHARD"
            yield _freed(survey, _first(wrapping, {"sharding_strategy": strategy}))
        offload = "torch.distributed.fsdp.CPUOffload(offload_params=True)"
        yield _on_host(survey, _first(wrapping, {"cpu_offload": offload}))
    elif any(_shards(script)):
        if any(_keeps_whole(call) for call in _shards(script)):
            yield _freed(survey, _second("reshard_after_forward", None, _keeps_whole))
        offload = "torch.distributed.fsdp.CPUOffloadPolicy()"
        yield _on_host(survey, _second("offload_policy", offload, _any))


def _freed(survey: Survey, edit: Callable[[ScriptText], ScriptText]) -> Change:
    whole = survey.ranks * sum(use.parameter_bytes for use in survey.optimizers)
    return Change(
        "sharding",
        _FREED,
        edit=edit,
        note="ranks gather parameters twice in a step",
        saves_bytes=2 * whole,
    )


def _on_host(survey: Survey, edit: Callable[[ScriptText], ScriptText]) -> Change:
    parameters = sum(use.parameter_bytes for use in survey.optimizers)
    gradients = sum(use.gradient_bytes for use in survey.optimizers)
    state = sum(use.state_bytes for use in survey.optimizers)
    return Change(
        "host",
        _ON_HOST,
        edit=edit,
        note="the host computes the optimizer's step; the time of that is a rough guess",
        saves_bytes=3 * parameters + gradients + state,
        costs_seconds=3 * parameters / _BUS_RATE,
        unseen_seconds=_TIMES_TOUCHED * parameters / _HOST_RATE,
        excludes=frozenset({"optimizer state"}),
    )


def _first(wrapping: Wrapping, settings: dict[str, str]) -> Callable[[ScriptText], ScriptText]:
    """Returns the edit that sets arguments of `FullyShardedDataParallel`, FSDP's first version."""

    def edit(script: ScriptText) -> ScriptText:
        call, _ = wrapped_model.find_wrapping(script, wrapping)
        _check_named(call, settings)
        changed = script.replace(call, with_settings(script, call, settings))
        return changed.importing("torch.distributed.fsdp")

    return edit


def _check_named(call: ast.Call, settings: dict[str, str]) -> None:
    """Raises a `CannotChangeError` if the call may set one of `settings` by position or by `**`."""
    if len(call.args) > 2 or any(keyword.arg is None for keyword in call.keywords):
        raise CannotChangeError(f"FSDP may be given {', '.join(settings)} without its name")


def _second(
    name: str, value: str | None, is_meant: Callable[[ast.Call], bool]
) -> Callable[[ScriptText], ScriptText]:
    """Returns the edit that sets an argument in calls of `fully_shard`, FSDP's second version."""

    def edit(script: ScriptText) -> ScriptText:
        for place in range(len(list(_shards(script)))):
            call = list(_shards(script))[place]
            if any(keyword.arg is None for keyword in call.keywords):
                raise CannotChangeError("fully_shard is given a mapping of arguments")
            if is_meant(call):
                script = script.replace(call, with_settings(script, call, {name: value}))
        return script if value is None else script.importing("torch.distributed.fsdp")

    return edit


def _shards(script: ScriptText) -> Iterator[ast.Call]:
    return calls_of(script.tree.body, "fully_shard")


def _any(_call: ast.Call) -> bool:
    return True


def _keeps_whole(call: ast.Call) -> bool:
    return any(
        keyword.arg == "reshard_after_forward"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in call.keywords
    )
