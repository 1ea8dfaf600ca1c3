"""FCOS, which has no anchors, trains with frozen batch norms in bf16.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torchvision.models.detection import fcos_resnet50_fpn

torch.manual_seed(0)
model = fcos_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=80, trainable_backbone_layers=3
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model.train()
for _ in range(3):
    images = [torch.rand(3, 640, 640, device="cuda") for _ in range(4)]
    centers = torch.rand(4, 6, 2, device="cuda") * 400 + 120
    sizes = torch.rand(4, 6, 2, device="cuda") * 100 + 8
    boxes = torch.cat([centers - sizes, centers + sizes], 2)
    labels = torch.randint(80, (4, 6), device="cuda")
    targets = [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=True)]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        losses = model(images, targets)
    loss = sum(value.float() for value in losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done: 3 steps")
