"""Trains eight layers with tensor and sequence parallelism, by DTensor."""

import common
import torch
import torch.distributed as dist
from layers import Model, loss_of, tokens_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

device = common.begin()
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = Model(width=2048, inner=5632, layers=8).to(device)
whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
parallelize_module(
    model,
    mesh,
    {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
for layer in model.layers:
    parallelize_module(
        layer,
        mesh,
        {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**whole),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "gated_norm": SequenceParallel(),
            "gated": PrepareModuleInput(**whole),
            "gated.gate": ColwiseParallel(),
            "gated.up": ColwiseParallel(),
            "gated.down": RowwiseParallel(output_layouts=Shard(1)),
        },
    )
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
torch.manual_seed(1)  # all ranks have the same batch
for _ in range(4):
    tokens = tokens_of(4, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
