"""Trains and validates; with the argument "fault", validation sums up losses with their graphs.

Otherwise validation runs under no_grad. A second argument is the number of batches per validation.
"""

import sys

import torch
from torch import nn

LAYERS = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)]
model = nn.Sequential(*LAYERS, nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batches = int(sys.argv[2]) if len(sys.argv) > 2 else 12


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2048, 256, device="cuda"), torch.randint(10, (2048,), device="cuda")


def validate() -> float:
    model.eval()
    total = torch.zeros((), device="cuda")
    with torch.set_grad_enabled("fault" in sys.argv):
        for _ in range(batches):
            x, y = batch()
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            total += loss
    return float(total.item() / batches)


for _ in range(2):
    model.train()
    for _ in range(10):
        x, y = batch()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    validate()
