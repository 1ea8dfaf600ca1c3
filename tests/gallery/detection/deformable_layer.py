"""A network learns where its deformable convolutions look.

Needs: torchvision
"""

import torch
from torch import nn
from torchvision.ops import DeformConv2d


class Deformable(nn.Module):
    def __init__(self, before, after, stride=1):
        super().__init__()
        self.places = nn.Conv2d(before, 3 * 9, 3, stride, 1)
        self.conv = DeformConv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        nn.init.zeros_(self.places.weight)
        nn.init.zeros_(self.places.bias)

    def forward(self, x):
        offsets, mask = self.places(x).split([18, 9], 1)
        return torch.relu(self.norm(self.conv(x, offsets, mask.sigmoid())))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3),
    nn.ReLU(),
    Deformable(64, 128, 2),
    Deformable(128, 128),
    Deformable(128, 256, 2),
    Deformable(256, 256),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 100),
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    images = torch.randn(16, 3, 256, 256, device="cuda")
    labels = torch.randint(100, (16,), device="cuda")
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done: 3 steps")
