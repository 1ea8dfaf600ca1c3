"""Trains by FSDP1: SHARD_GRAD_OP, with parameters and optimizer on the host."""

import functools

import common
import torch
from layers import Block, Model, loss_of, tokens_of
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

device = common.begin()
model = FullyShardedDataParallel(
    Model(),
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    cpu_offload=CPUOffload(offload_params=True),
    use_orig_params=True,
    device_id=device,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(3):
    tokens = tokens_of(4, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
