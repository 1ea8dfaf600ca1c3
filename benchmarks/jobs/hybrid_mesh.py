"""Trains by FSDP2 on a 2D mesh: sharded within pairs of ranks, replicated across pairs (HSDP)."""

import common
import torch
import torch.distributed as dist
from layers import Model, loss_of, tokens_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

device = common.begin()
count = dist.get_world_size()
mesh = init_device_mesh(
    "cuda", (max(1, count // 2), min(2, count)), mesh_dim_names=("copies", "parts")
)
model = Model(width=1536, heads=12, inner=4096).to(device)
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
fully_shard(model, mesh=mesh, mp_policy=precision)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(4):
    tokens = tokens_of(4, 1024, device)
    loss_of(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
