"""Trains a model in DataParallel, or a separate model on each card."""

import sys

import torch
from torch import nn


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))


if "fault" in sys.argv:
    models: list[nn.Module] = [nn.DataParallel(model().cuda())]
else:
    models = [model().cuda(device) for device in range(2)]
for device, each in enumerate(models):
    optimizer = torch.optim.AdamW(each.parameters())
    for _ in range(3):
        each(torch.randn(512, 1024, device=f"cuda:{device}")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
