"""Trains on batches of varied length, or of one length."""

import sys

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
torch.manual_seed(0)
for _ in range(30):
    length = int(torch.randint(64, 1536, ())) if "fault" in sys.argv else 1024
    x = torch.randn(16, length, 256, device="cuda")
    layer(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
