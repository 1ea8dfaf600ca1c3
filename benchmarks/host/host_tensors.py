"""Builds a model of 1.3 GB on the host, keeps a clone there, and moves the model to the device."""

import sys

import torch
from torch import nn

device = sys.argv[1]
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(20)])
kept = {name: value.clone() for name, value in model.state_dict().items()}
model = model.to(device)
with torch.no_grad():
    print(model(torch.randn(4, 4096, device=device)).sum().item())
