"""Trains by DDP with a static graph and checkpointed layers. Averages the loss over the ranks."""

import common
import torch
import torch.distributed as dist
from layers import Model, loss_of, tokens_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


device = common.begin()
model = Model(width=1536, heads=12, inner=4096, layers=8)
model.layers = nn.ModuleList(Checkpointed(layer) for layer in model.layers)
model = DistributedDataParallel(model.to(device), device_ids=[device], static_graph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(4):
    tokens = tokens_of(4, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"loss {shown.item():.3f}")
    common.stepped()
common.end()
