"""Trains by DDP with ZeroRedundancyOptimizer: each rank has a part of Adam's state."""

import common
import torch
from layers import Model, loss_of, tokens_of
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

device = common.begin()
model = DistributedDataParallel(
    Model(width=1280, inner=3456).to(device), device_ids=[device], gradient_as_bucket_view=True
)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
common.own_data()
for _ in range(4):
    tokens = tokens_of(2, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    model.zero_grad()
    common.stepped()
common.end()
