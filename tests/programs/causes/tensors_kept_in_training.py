"""Trains, and keeps new tensors, detached activations or nothing; no kept tensor has a graph."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(40):
    optimizer.zero_grad()
    hidden = model[1](model[0](torch.randn(64, 256, device="cuda")))
    model[2](hidden).square().mean().backward()
    optimizer.step()
    if "fault" in sys.argv:
        kept.append(torch.ones(64, 4096, device="cuda"))
    elif "detached" in sys.argv:
        kept.append(hidden.detach())
