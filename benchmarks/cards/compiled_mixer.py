"""Trains a compiled MLP-Mixer."""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, patches=196, width=512):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.over = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
        self.inside = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

    def forward(self, x):
        x = x + self.over(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.inside(self.norms[1](x))


model = nn.Sequential(*(Mixer() for _ in range(6)), nn.Linear(512, 10)).cuda()
step = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    with torch.autocast("cuda", torch.bfloat16):
        loss = step(torch.randn(64, 196, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
