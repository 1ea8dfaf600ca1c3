"""Provides job scripts, surveys (what trial runs of the scripts showed), and changed scripts."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll.base.units import GiB
from plimsoll.prediction.fitting.attempts import changed
from plimsoll.prediction.fitting.changes.jobs import job_changes
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.survey import (
    ModelCall,
    ModelUse,
    OptimizerUse,
    Place,
    Survey,
    Wrapping,
)

if TYPE_CHECKING:
    from plimsoll.prediction.fitting.changes.change import Change

DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as Data


def main():
    net = Net().cuda()
    model = Data(net, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95))
    for x in data():
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""
FSDP2 = DDP.replace(
    "    model = Data(net, device_ids=[0])\n",
    """\
    for layer in net.layers:
        fully_shard(layer, reshard_after_forward=False)
    model = fully_shard(net)
""",
)
FSDP1 = DDP.replace(
    "    model = Data(net, device_ids=[0])\n",
    """\
    model = FullyShardedDataParallel(
        net,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        use_orig_params=True,
    )
""",
)


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)


def survey(text: str = DDP, wrapping: str = "", **seen: Any) -> Survey:
    """Returns a survey: what a trial run of the script with four ranks showed."""
    optimizer = OptimizerUse(
        "torch.optim.adamw.AdamW", Place(line_of(text, "AdamW("), "main"),
        Place(line_of(text, ".step()"), "main"), {}, GiB, GiB, 2 * GiB,
        is_foreach=True, keeps_gradients=False,
    )  # fmt: skip
    model = ModelUse(
        "Net", [("net", "main", "module"), ("model", "main", "")],
        [ModelCall(Place(line_of(text, "model(x)"), "main"), ["x"], [])], 8,
        is_transformers=False, attention=None, has_batch_statistics=False, has_dropout=False,
        autocast=None, parameter_types={"float32": GiB}, blocks=["layers"], is_wrapped=True,
    )  # fmt: skip
    settings = {"sharding_strategy": "SHARD_GRAD_OP"} if "Sharded" in wrapping else {}
    wrappings = []
    if wrapping:
        made = Place(line_of(text, "model = "), "main")
        wrappings = [Wrapping(wrapping, made, {**settings}, comes_first=True)]
    found = Survey(
        optimizers=[optimizer], models=[model], ranks=4, wrappings=wrappings,
        backwards=[Place(line_of(text, ".backward()"), "main")],
    )  # fmt: skip
    return replace(found, **seen)


def of_ddp(text: str = DDP, **seen: Any) -> Survey:
    return survey(text, "DistributedDataParallel", **seen)


def change_of(seen: Survey, text: str, part: str) -> Change:
    return next(each for each in job_changes(seen, ScriptText.of(text)) if part in each.name)


def made(changes: list[Change], text: str) -> str:
    new = str(changed(ScriptText.of(text), tuple(changes)))
    ast.parse(new)
    return new
