"""Trains a head with a large vocabulary, or with a small one."""

import sys

import torch
from torch import nn

VOCABULARY = 50_000 if "fault" in sys.argv else 500
layers = [nn.Embedding(VOCABULARY, 64), nn.Linear(64, 64), nn.Linear(64, VOCABULARY)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(VOCABULARY, (8, 256), device="cuda")
    scores = model(tokens)
    nn.functional.cross_entropy(scores.view(-1, VOCABULARY), tokens.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()
