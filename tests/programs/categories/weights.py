"""Creates parameters that are hard to recognize as such.

The parameters belong to a copy of the model, to a layer that is never called, and to a layer whose
weight is replaced.
"""

import copy

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])
average = copy.deepcopy(model).requires_grad_(False).cuda()
model = model.cuda()
never_called = nn.Linear(1024, 4096).cuda().requires_grad_(False)
cut = nn.Linear(4096, 1024, bias=False).cuda()
cut.weight = nn.Parameter(cut.weight.detach()[:, :1024].clone())
for _ in range(3):
    data = torch.randn(64, 1024).cuda()
    cut(model(data)).square().mean().backward()
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.mul_(0.99).add_(new, alpha=0.01)
            new.grad = None
