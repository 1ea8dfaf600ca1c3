"""Runs convolutions of unusual shapes; plimsoll has no measured workspace sizes for them."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 48, (5, 3), stride=(2, 1), padding=(2, 1)),
    nn.ReLU(),
    nn.ConvTranspose2d(48, 8, 2, stride=2),
).cuda()
line = nn.Conv1d(16, 24, 5, padding=2).cuda()
model(torch.randn(6, 3, 90, 70, device="cuda")).sum().backward()
line(torch.randn(4, 16, 333, device="cuda")).sum().backward()
