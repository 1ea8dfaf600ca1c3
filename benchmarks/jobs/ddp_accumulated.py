"""Trains data parallel, and adds up the gradients of three small batches before the reduction."""

from contextlib import nullcontext

import common
import torch
from layers import Model, loss_of, tokens_of
from torch.nn.parallel import DistributedDataParallel

device = common.begin()
model = DistributedDataParallel(Model(layers=10).to(device), device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
common.own_data()
for _ in range(3):
    for part in range(3):
        with nullcontext() if part == 2 else model.no_sync():
            tokens = tokens_of(2, 1024, device)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model(tokens), tokens) / 3
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
