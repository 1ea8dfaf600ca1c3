"""Trains torchvision's ResNet-34 in single precision by SGD with momentum."""

import torch
import torchvision

model = torchvision.models.resnet34().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    images = torch.randn(48, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (48,), device="cuda")
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
