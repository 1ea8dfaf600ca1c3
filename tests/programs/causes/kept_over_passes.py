"""Runs a validation that sums up losses with their graphs, or as numbers."""

import sys

import torch
from torch import nn

LAYERS = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
model = nn.Sequential(*LAYERS).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batch_loss() -> torch.Tensor:
    x = torch.randn(512, 256, device="cuda")
    target = torch.randint(10, (512,), device="cuda")
    return nn.functional.cross_entropy(model(x), target)


for _ in range(2):
    for _ in range(10):
        optimizer.zero_grad()
        batch_loss().backward()
        optimizer.step()
    total = torch.zeros((), device="cuda")
    for _ in range(40):
        loss = batch_loss()
        total += loss if "fault" in sys.argv else loss.detach()
