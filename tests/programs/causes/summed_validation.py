"""Each batch of a validation keeps its graph in the sum of losses."""

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
        total = total + batch_loss()
    print(total.item() / 40)
