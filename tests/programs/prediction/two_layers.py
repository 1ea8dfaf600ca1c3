"""Trains two layers for two steps: two_layers.py BATCH [ROWS]. ROWS adds a tensor of ROWS rows."""

import sys

import torch

WIDTH = 1024
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
if len(sys.argv) > 2:
    held = torch.zeros(int(sys.argv[2]), WIDTH, device="cuda")
for _ in range(2):
    batch = torch.randn(int(sys.argv[1]), WIDTH, device="cuda")
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
