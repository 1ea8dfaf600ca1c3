"""Changes to scripts that use DistributedDataParallel. They reduce the memory of each rank."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes import wrapped_model
from plimsoll.prediction.fitting.changes.call_settings import with_settings
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.script_text import CannotChangeError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey, Wrapping

_LINK_RATE = 100e9  # approximate bytes per second between ranks
_WITHOUT_MEANING = (
    "module", "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync",
    "bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph",
)  # fmt: skip
"""Arguments of DistributedDataParallel that may be dropped if the model is sharded instead."""
_OF_WHOLE_MODELS = {
    "no_sync": "calls no_sync(), which is DistributedDataParallel's",
    "module": "uses what is inside DistributedDataParallel (.module)",
    "register_comm_hook": "has a hook of its own for gradients",
    "state_dict": "saves its state, of which each rank would then have a part",
    "load_state_dict": "loads its state, of which each rank would then have a part",
}
_SHARD = "torch.distributed.fsdp.fully_shard"


def data_parallel_changes(survey: Survey) -> Iterator[Change]:
    """Yields two changes: one keeps a single copy of the gradients, the other shards the model."""
    wrapping = wrapped_model.only_wrapping(survey, wrapped_model.DATA_PARALLEL)
    if wrapping is None or len(survey.optimizers) != 1:
        return
    (use,) = survey.optimizers
    if not wrapping.settings.get("gradient_as_bucket_view"):
        yield Change(
            "buckets",
            "let gradients lie in the buckets in which ranks add them up",
            edit=lambda script: _as_views(script, wrapping),
            saves_bytes=use.gradient_bytes,
        )
    elsewhere = 1 - 1 / survey.ranks
    held = use.parameter_bytes + use.gradient_bytes + use.state_bytes
    yield Change(
        "sharding",
        "shard parameters, gradients and optimizer state over the ranks (FSDP2)",
        edit=lambda script: _sharded(script, survey, wrapping),
        note=_note(survey),
        saves_bytes=int(held * elsewhere) + use.gradient_bytes + 2 * use.parameter_bytes,
        costs_seconds=3 * use.parameter_bytes * elsewhere / _LINK_RATE,
        excludes=frozenset({"buckets", "optimizer state"}),
    )


def _note(survey: Survey) -> str:
    notes = ["ranks add up gradients in another order"]
    if any(model.has_batch_statistics for model in survey.models):
        notes.append("running statistics are each rank's own, and not the first one's")
    return "; ".join(notes)


def _as_views(script: ScriptText, wrapping: Wrapping) -> ScriptText:
    call, _ = wrapped_model.find_wrapping(script, wrapping)
    return script.replace(call, with_settings(script, call, {"gradient_as_bucket_view": "True"}))


def _sharded(script: ScriptText, survey: Survey, wrapping: Wrapping) -> ScriptText:
    if not wrapping.comes_first:
        raise CannotChangeError("the optimizer is made before the model is wrapped")
    _check(script)
    call, statement = wrapped_model.find_wrapping(script, wrapping)
    if getattr(statement, "value", None) is not call:
        raise CannotChangeError("the model is wrapped within another expression")
    model = _wrapped_model(call)
    name = script.text_of(model)
    before = []
    if not isinstance(model, ast.Name | ast.Attribute):
        text, name = name, _unused(script, "whole_model")
        before = [f"{name} = {text}"]
    whole = _unused(script, "whole")
    before += [
        f"for {whole} in [*{name}.parameters(), *{name}.buffers()]:",
        f"    torch.distributed.broadcast({whole}.detach(), 0)",
        f"del {whole}",
        *_by_layer(script, name, [block for each in survey.models for block in each.blocks]),
    ]
    changed = script.replace(call, f"{_SHARD}({name})")
    changed = changed.insert(first_line(statement), before, statement.lineno)
    return changed.importing("torch", "torch.distributed.fsdp")


def _check(script: ScriptText) -> None:
    """Raises a `CannotChangeError` if the script uses what sharding takes away.

    After sharding, no rank has the whole model, and DistributedDataParallel's methods are gone.
    """
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute) and node.attr in _OF_WHOLE_MODELS:
            raise CannotChangeError(f"the script {_OF_WHOLE_MODELS[node.attr]}")


def _wrapped_model(call: ast.Call) -> ast.expr:
    unknown = [each.arg for each in call.keywords if each.arg not in _WITHOUT_MEANING]
    if unknown:
        raise CannotChangeError(f"DistributedDataParallel is given {unknown[0] or '**'}")
    named = [each.value for each in call.keywords if each.arg == "module"]
    given = [*call.args[:1], *named]
    if not given or isinstance(given[0], ast.Starred):
        raise CannotChangeError("DistributedDataParallel is given no model by itself")
    return given[0]


def _by_layer(script: ScriptText, model: str, names: Sequence[str]) -> list[str]:
    """Returns lines that shard each layer of a model, so that only one layer at a time is whole."""
    lists = [_part(model, name) for name in names]
    if not lists:
        return []
    layers = lists[0] if len(lists) == 1 else f"[{', '.join(f'*{each}' for each in lists)}]"
    layer = _unused(script, "layer")
    return [f"for {layer} in {layers}:", f"    {_SHARD}({layer})"]


def _unused(script: ScriptText, name: str) -> str:
    """Returns `name`, with underscores added if the script uses it already."""
    used = {node.id for node in ast.walk(script.tree) if isinstance(node, ast.Name)}
    while name in used:
        name += "_"
    return name


def _part(model: str, name: str) -> str:
    if not name:
        return model
    if all(part.isidentifier() for part in name.split(".")):
        return f"{model}.{name}"
    return f'{model}.get_submodule("{name}")'
