"""Trains by FSDP1: FULL_SHARD, a unit for each layer, computing in bfloat16."""

import functools

import common
import torch
from layers import Block, Model, loss_of, tokens_of
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

device = common.begin()
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
precision = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
model = FullyShardedDataParallel(
    Model(width=1536, heads=12, inner=4096),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    auto_wrap_policy=policy,
    mixed_precision=precision,
    device_id=device,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(4):
    tokens = tokens_of(4, 1024, device)
    loss_of(model(tokens), tokens).backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
