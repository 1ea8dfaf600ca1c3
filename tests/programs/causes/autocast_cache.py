"""Runs inference under autocast, or trains; only training needs autocast's copies of weights."""

import sys

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
x = torch.randn(8, 1024, device="cuda")
for _ in range(3):
    if "fault" in sys.argv:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            y = model(x)
    else:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()
