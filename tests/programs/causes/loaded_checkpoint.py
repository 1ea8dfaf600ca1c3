"""Loads a checkpoint onto the card, or into host memory."""

import sys

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
torch.save(model.state_dict(), "checkpoint.pt")
state = torch.load("checkpoint.pt", map_location="cuda" if "fault" in sys.argv else "cpu")
model = model.cuda()
model.load_state_dict(state)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(64, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
