"""Trains. Keeps each step's metric: a tensor with its graph if told "fault", otherwise a number."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scores = []
for _ in range(40):
    x = torch.randn(512, 256, device="cuda")
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    score = model(x).std()
    scores.append(score if "fault" in sys.argv else score.item())
