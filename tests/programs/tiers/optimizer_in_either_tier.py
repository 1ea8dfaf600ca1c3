"""Trains. The optimizer's state is on the card or, with --place, in host memory."""

import sys

import torch

import plimsoll

WIDTH = 2048

model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
if "--place" in sys.argv:
    plimsoll.place_optimizer(optimizer)
for _ in range(3):
    model(torch.randn(8, WIDTH, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
