"""Runs two ranks: both use the first card, or each uses its own card."""

import os
import sys

import torch
from torch import nn

if "fault" not in sys.argv:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(64, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
