"""Runs a validation with autograd, or without."""

import sys

import torch
from torch import nn

layers = [nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(256, 512, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.set_grad_enabled("fault" in sys.argv):
    for _ in range(3):
        score = model(torch.randn(4096, 512, device="cuda")).mean().item()
