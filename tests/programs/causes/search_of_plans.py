"""Runs convolutions with or without cudnn.benchmark, which makes cuDNN try several algorithms."""

import sys

import torch
from torch import nn

torch.backends.cudnn.benchmark = "fault" in sys.argv
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(16, 3, 64, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
