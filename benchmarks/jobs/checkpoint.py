"""Saves FSDP2's state with torch.distributed.checkpoint, loads it, and continues to train."""

import shutil
import tempfile

import common
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layers import Model, loss_of, tokens_of
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def step():
    tokens = tokens_of(2, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()


device = common.begin()
model = Model(width=1280, inner=3456).to(device)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(2):
    step()

folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])
common.stepped()
weights, moments = get_state_dict(model, optimizer)
dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
del weights, moments
step()
dist.barrier()
if dist.get_rank() == 0:
    shutil.rmtree(folder[0])
common.end()
