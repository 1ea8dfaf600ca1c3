"""Recomputes activations; checkpoints each block or, with "fault", the whole model at once."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]
model = nn.Sequential(*blocks).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(8192, 512, device="cuda")
    for part in [model] if "fault" in sys.argv else model:
        x = checkpoint(part, x, use_reentrant=False)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
