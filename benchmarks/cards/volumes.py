"""Trains a network on 3D volumes in bfloat16."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv3d(1, 32, 3, padding=1),
    nn.InstanceNorm3d(32),
    nn.LeakyReLU(),
    nn.Conv3d(32, 64, 3, stride=2, padding=1),
    nn.InstanceNorm3d(64),
    nn.LeakyReLU(),
    nn.Conv3d(64, 64, 3, padding=1),
    nn.LeakyReLU(),
    nn.ConvTranspose3d(64, 32, 2, stride=2),
    nn.Conv3d(32, 3, 1),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(3):
    volumes = torch.randn(2, 1, 96, 96, 64, device="cuda")
    classes = torch.randint(3, (2, 96, 96, 64), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(volumes), classes)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
