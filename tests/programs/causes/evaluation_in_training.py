"""Trains, keeps a result of each step, and evaluates now and then.

With the argument "fault" the evaluation keeps its graph over the next steps, and the results stay
on the card.
"""

import sys

import torch
from torch import nn

LAYERS = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)]
model = nn.Sequential(*LAYERS).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
is_faulty = "fault" in sys.argv
bank = []
for step in range(20):
    z = model(torch.randn(1024, 256, device="cuda"))
    optimizer.zero_grad()
    z.square().mean().backward()
    optimizer.step()
    if is_faulty:
        bank.append(z)
    else:
        bank.append(z.detach().cpu())
    if step % 10 == 9:
        with torch.set_grad_enabled(is_faulty):
            first = [model(torch.randn(1024, 256, device="cuda")) for _ in range(4)]
            z = torch.cat(first)
            scores = z @ z.T
        print(scores.argmax(1).float().mean().item())
