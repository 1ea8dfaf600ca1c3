"""Draws sequence lengths on the GPU, pads to the longest, and selects valid tokens by a mask."""

import torch
from torch import nn

torch.manual_seed(5)
emb = nn.Embedding(32000, 1024, device="cuda")
f = nn.Linear(1024, 4096, device="cuda")
for _step in range(4):
    lens = torch.randint(16, 513, (64,), device="cuda")
    m = int(lens.max())
    ids = torch.randint(0, 32000, (64, m), device="cuda")
    valid = torch.arange(m, device="cuda")[None] < lens[:, None]
    h = emb(ids[valid])
    y = f(h).relu()
    loss = y.mean()
    loss.backward()
    emb.weight.grad = None
    f.weight.grad = None
