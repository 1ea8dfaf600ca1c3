"""Heads pool regions of one feature map in three ways, and learn to classify the regions.

Needs: torchvision
"""

import torch
from torch import nn
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.ops import PSRoIAlign, PSRoIPool, RoIAlign, RoIPool

CLASSES = 21


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        body = resnet18(weights=None)
        self.body = create_feature_extractor(body, {"layer3": "features"})
        self.pool = RoIPool(output_size=7, spatial_scale=1 / 16)
        self.align = RoIAlign(output_size=7, spatial_scale=1 / 16, sampling_ratio=2)
        self.maps = nn.Conv2d(256, CLASSES * 49, 1)
        self.votes = nn.ModuleList([PSRoIPool(7, 1 / 16), PSRoIAlign(7, 1 / 16, 2)])
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(256 * 49, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
        )

    def forward(self, images, boxes):
        features = self.body(images)["features"]
        logits = self.head(self.pool(features, boxes)) + self.head(self.align(features, boxes))
        maps = self.maps(features)
        return logits + sum(vote(maps, boxes).mean((2, 3)) for vote in self.votes)


torch.manual_seed(0)
model = Regions().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(3):
    images = torch.randn(8, 3, 512, 512, device="cuda")
    corners = torch.rand(8, 128, 2, device="cuda") * 300
    boxes = torch.cat([corners, corners + torch.rand(8, 128, 2, device="cuda") * 200 + 8], 2)
    labels = torch.randint(CLASSES, (8 * 128,), device="cuda")
    loss = nn.functional.cross_entropy(model(images, list(boxes)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done: 3 steps")
